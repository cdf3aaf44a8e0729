"""The `userMetadata` of our Delta commits."""

from __future__ import annotations

import base64
import json

from etl.errors import EtlError, SettingsError
from etl.model.plans import CommitResult, Plan, RangeResult
from etl.model.snapshot import CommitMetadata
from etl.protocol.zookeeper.documents import FORMAT, sorted_items
from etl.protocol.zookeeper.ledger_documents import parse_applied, render_applied
from etl.protocol.zookeeper.plan_documents import FEWER_TOPICS, render_plan

METADATA_FULL_BYTES = 64 * 2**10
"""Above this the metadata keeps the ids and the compressed plan, and no text for people."""
METADATA_MAX_BYTES = 8 * 2**20
"""Above this a run refuses before the append: a commit with 20 MB of it makes a table that Spark
can never read again.
"""

_FOR_PEOPLE = ("ranges", "positions")
_LEAST_BYTES_OF_ONE = len('["t", "0", 0]')
"""Of what is told to people."""


def render_commit_metadata(plan: Plan, app_id: str, run_id: str | None = None) -> str:
    """The `userMetadata` of the commit by which run `run_id` applies `plan`.

    Raises SettingsError when even the short form is larger than a table can bear.
    """
    known = {
        "app": "offset-range-etl",
        "format": FORMAT,
        "app_id": app_id,
        "uid": plan.uid,
        "number": plan.number,
        "plan_id": plan.id,
        "previous": plan.previous,
        "kind": plan.kind.value,
        "run_id": run_id,
    }
    known["plan_zlib"] = base64.b85encode(render_plan(plan)).decode("ascii")
    if _LEAST_BYTES_OF_ONE * (len(plan.ranges) + len(plan.positions)) <= METADATA_FULL_BYTES:
        full = json.dumps(
            {
                **known,
                "ranges": [
                    [r.log.topic, r.log.key, r.from_offset, r.until_offset] for r in plan.ranges
                ],
                "positions": [
                    [log.topic, log.key, offset] for log, offset in sorted_items(plan.positions)
                ],
            }
        )
        if len(full) <= METADATA_FULL_BYTES:
            return full
    short = json.dumps(known)
    if len(short) > METADATA_MAX_BYTES:
        what = f"the plan knows {len(plan.positions):,} logs, its commit metadata would take {len(short):,} bytes of {METADATA_MAX_BYTES:,}"
        raise SettingsError(what, key="source.topics", check=FEWER_TOPICS)
    return short


def with_receipts(metadata: str, plan: Plan, receipts: tuple[RangeResult, ...]) -> str:
    """The same with what reading each range of the plan came to, known before the commit: then
    nobody has to count its rows again.

    It makes way for nothing else that the commit says: above `METADATA_FULL_BYTES` the text for
    people goes, and above `METADATA_MAX_BYTES` the receipts themselves.
    """
    said = json.loads(metadata)
    said["receipts_zlib"] = base64.b85encode(
        render_applied(CommitResult(plan.number, plan.id, -1, "", receipts))
    ).decode("ascii")
    full = json.dumps(said)
    if len(full) <= METADATA_FULL_BYTES:
        return full
    short = json.dumps({key: value for key, value in said.items() if key not in _FOR_PEOPLE})
    return short if len(short) <= METADATA_MAX_BYTES else metadata


def receipts_of(metadata: CommitMetadata) -> tuple[RangeResult, ...] | None:
    """What the commit says that reading came to; None where it says nothing of it, or nothing that
    can be read.
    """
    if metadata.receipts is None:
        return None
    try:
        applied = parse_applied(metadata.receipts, path=f"commit {metadata.delta_version}")
    except EtlError:
        return None
    return applied.receipts if applied.plan_id == metadata.plan_id else None


def refuse_too_large(plan: Plan) -> None:
    """Raises SettingsError for a plan that no commit could carry, or that could not be read again.
    A run asks before it stores one.
    """
    render_commit_metadata(plan, "")


def parse_commit_metadata(text: str, delta_version: int) -> CommitMetadata | None:
    """What a commit's `userMetadata` says, or None when it is not ours. Its plan is not parsed yet."""
    try:
        found = json.loads(text)
        if found.get("app") != "offset-range-etl":
            return None
        document, run_id, receipts = (
            found.get("plan_zlib"),
            found.get("run_id"),
            found.get("receipts_zlib"),
        )
        return CommitMetadata(
            delta_version,
            str(found["app_id"]),
            str(found["uid"]),
            int(found["number"]),
            str(found["plan_id"]),
            document=base64.b85decode(document) if document else None,
            run_id=str(run_id) if run_id else None,
            receipts=base64.b85decode(receipts) if receipts else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
