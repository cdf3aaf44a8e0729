"""Plans as bytes: what a znode or a commit of the table holds of one, and the id that its content has.

The id is the hash of the canonical content without the leaders, because a leader is only today's address.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace
from typing import Any

from etl.errors import SettingsError
from etl.model.plans import Plan
from etl.protocol.zookeeper import documents
from etl.protocol.zookeeper.documents import FORMAT, canonical, parsed
from etl.protocol.zookeeper.plan_content import content_of, plan_of

RANGES_MAX = 500_000
"""A plan with more ranges than this is refused: its record could outgrow `WRITTEN_MAX_BYTES` without naming one gap."""
FEWER_TOPICS = "that the expressions match what you mean; source.topics.deny leaves topics out"


def with_id(plan: Plan) -> Plan:
    """The same plan with its id filled in."""
    return replace(plan, id=plan_id(plan))


def plan_id(plan: Plan, form: int = FORMAT) -> str:
    """Hash of the canonical content in that format, without the leaders: 32 hex digits."""
    content = content_of(plan, form)
    del content["leaders"], content["ranges"]["leader"], content["ranges"]["epoch"]
    content.pop("generations", None)
    return hashlib.sha256(canonical(content)).hexdigest()[:32]


def render_plan(plan: Plan) -> bytes:
    """The znode of a plan. Raises SettingsError for one so large that it, or what comes of it, could not be read again."""
    document = canonical(plan_content(plan))
    if len(document) > documents.WRITTEN_MAX_BYTES:
        what = f"the plan knows {len(plan.positions):,} logs and would take {len(document):,} bytes of {documents.WRITTEN_MAX_BYTES:,}"
        raise SettingsError(what, key="source.topics", check=FEWER_TOPICS)
    if len(plan.ranges) > RANGES_MAX:
        what = f"the plan would have {len(plan.ranges):,} ranges of {RANGES_MAX:,}"
        check = "set limits.max_bytes_per_run or limits.max_records_per_run, so that one run takes on less, or raise target_task_bytes"
        raise SettingsError(what, key="limits.target_task_bytes", check=check)
    return zlib.compress(document, 6)


def plan_content(plan: Plan) -> dict[str, Any]:
    """A plan as it is stored, before it is compressed."""
    return {**content_of(plan), "id": plan.id}


def parse_plan(payload: bytes, *, path: str) -> Plan:
    """The plan of a znode. Raises LedgersDisagree when it is not one, or its content does not hash to its id."""
    return parsed(payload, path, _plan)


def _plan(document: dict[str, Any]) -> Plan:
    plan = plan_of(document)
    if plan_id(plan, document["format"]) != plan.id:
        raise ValueError("its content does not hash to its id")
    return plan
