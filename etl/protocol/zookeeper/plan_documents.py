"""Plans as bytes: what a znode or a commit of the table holds of one, and the id that its content
has.

The id is the hash of the canonical content without the leaders, because a leader is only today's
address; and a plan that is handed over, or void, is the one that was to be. The time zone decides
no range, so it is no part of the id: a driver from before it was kept still reads the document.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from etl.errors import SettingsError
from etl.model.plans import Plan
from etl.protocol.zookeeper import documents
from etl.protocol.zookeeper.documents import FORMAT, canonical, parsed
from etl.protocol.zookeeper.plan_content import content_of, plan_of

RANGES_MAX = 500_000
"""A plan with more ranges than this is refused: its record could outgrow `WRITTEN_MAX_BYTES`
without naming one gap.
"""
FEWER_TOPICS = "that the expressions match what you mean; source.topics.deny leaves topics out"
_NOT_HASHED = ("leaders", "generations", "void", "time_zone")
_LEADERS_OF_RANGES = ("leader", "epoch")
"""What of a plan's content is no part of its hash."""


def with_id(plan: Plan) -> Plan:
    """The same plan with its id filled in."""
    parts = _parts(content_of(plan))
    known = replace(plan, id=_hash(parts))
    _rendered.keep(known, parts)  # the id is no part of them
    return known


def plan_id(plan: Plan, form: int = FORMAT) -> str:
    """Hash of the canonical content in that format, without the leaders, and whether or not it is
    handed over yet: 32 hex digits.
    """
    return _hash(_parts(content_of(plan, form)))


class _Parts(NamedTuple):
    """The canonical text of each part of a plan's content, by its name."""

    ranges: Mapping[str, str]
    others: Mapping[str, str]


class _Rendered:
    """What was made last.

    A plan gets its id, is stored, and is told in the commit, one after the other: the content of a
    frozen value, of a large plan the work of half a second, is made once for all three.
    """

    def __init__(self) -> None:
        self._last: tuple[Plan, _Parts] | None = None

    def of(self, plan: Plan) -> _Parts:
        last = self._last  # one look: another thread may render another plan
        if last is not None and last[0] is plan:
            return last[1]
        return self.keep(plan, _parts(content_of(plan)))

    def keep(self, plan: Plan, parts: _Parts) -> _Parts:
        self._last = plan, parts
        return parts


_rendered = _Rendered()


def _parts(content: dict[str, Any]) -> _Parts:
    ranges = content.pop("ranges")
    return _Parts(
        *(
            {name: canonical(part).decode() for name, part in found.items()}
            for found in (ranges, content)
        )
    )


def _hash(parts: _Parts) -> str:
    ranges = {name: text for name, text in parts.ranges.items() if name not in _LEADERS_OF_RANGES}
    content = {name: text for name, text in parts.others.items() if name not in _NOT_HASHED}
    if "handed_over" in content:
        content["handed_over"] = canonical(
            True
        ).decode()  # it becomes so, and the plan stays the same
    return hashlib.sha256(_joined({**content, "ranges": _joined(ranges)}).encode()).hexdigest()[:32]


def _joined(parts: Mapping[str, str]) -> str:
    """The canonical text of an object of these parts."""
    return "{" + ",".join(f'"{name}":{parts[name]}' for name in sorted(parts)) + "}"


def render_plan(plan: Plan) -> bytes:
    """The znode of a plan. Raises SettingsError for one so large that it, or what comes of it,
    could not be read again.
    """
    parts = _rendered.of(plan)
    document = _joined(
        {**parts.others, "ranges": _joined(parts.ranges), "id": canonical(plan.id).decode()}
    ).encode()
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
    """The plan of a znode. Raises LedgersDisagree when it is not one, or its content does not hash
    to its id.
    """
    return _parsed(payload, path)


@functools.lru_cache(maxsize=1)
def _parsed(payload: bytes, path: str) -> Plan:
    """A run reads the newest plan as it begins, and again before it stores the next one: the same
    bytes are the same plan.
    """
    return parsed(payload, path, _plan)


def _plan(document: dict[str, Any]) -> Plan:
    plan = plan_of(document)
    if plan_id(plan, document["format"]) != plan.id:
        raise ValueError("its content does not hash to its id")
    return plan
