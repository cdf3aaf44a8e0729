"""What a report says of a run key and of bounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from etl.model.partitions import BrokerPartition
from etl.model.plans import Bound, KeptKey, Plan, Request
from etl.report.run_state import Outcome
from etl.report.words import at


def told_done_before(key: KeptKey) -> str:
    """A run that was asked for under a key whose run is done."""
    if key.is_empty:
        behind = f"behind plan {key.number}" if key.number else "before there was any plan"
        return f"run key {key.key} was asked for before, {behind}, and there was nothing to read{_up_to(key)}"
    return f"run key {key.key} is already applied by plan {key.number}{_up_to(key)}"


def told_nothing_under(key: KeptKey) -> str:
    """The first run under a key that has nothing to read."""
    return f"nothing new to read{_up_to(key)}; asked for again, run key {key.key} stays at that"


def _up_to(key: KeptKey) -> str:
    return f" ({key.said})" if key.said else ""


def told_without_plan(
    done_before: KeptKey | None, remembered: KeptKey | None
) -> tuple[Outcome, str]:
    """What a run came to that made no plan."""
    if done_before:
        return Outcome.ALREADY_APPLIED, told_done_before(done_before)
    return Outcome.NOTHING_NEW, told_nothing_under(
        remembered
    ) if remembered else "nothing new to read"


def told_open(plan: Plan) -> str:
    """In how many partitions nobody knows yet whether more comes that is older than the bound."""
    until, many = plan.bounds.until, plan.bounds.open_logs
    return (
        f"plan {plan.number}: {_have(many)} no record at or after {until.said if until else ''} yet and {'is' if many == 1 else 'are'} "
        "read to the end; what comes there later and is older goes into a later run"
    )


def told_open_without_plan(until: Bound, many: int) -> str:
    """The same of a run that had nothing to read."""
    return (
        f"{_have(many)} no record at or after {until.said} yet, and nothing that is not loaded; what comes there later and is older goes "
        "into a later run"
    )


def told_left_of_key(key: str, left: Collection[BrokerPartition]) -> str:
    """The logs that could not be read under a key: one is named, as each is under its own outcome."""
    return (
        f"run key {key} left {_first_of(left)}, which could not be read: asked for again once it can, the key loads what "
        f"{'they have' if len(left) > 1 else 'it has'} up to its bound"
    )


def told_beyond(beyond: Mapping[BrokerPartition, int], said: str) -> str:
    """What an earlier run loaded behind the bound of this one."""
    return f"{_first_of(beyond)}: an earlier run has loaded {sum(beyond.values()):,} offsets beyond {said}"


def _have(many: int) -> str:
    return "1 partition has" if many == 1 else f"{many:,} partitions have"


def _first_of(logs: Collection[BrokerPartition]) -> str:
    return f"{min(logs)}" + (f" and {len(logs) - 1:,} more partitions" if len(logs) > 1 else "")


def describe_asked(request: Request | None) -> dict[str, object]:
    """What a run was asked for, for programs."""
    bounds = request.bounds if request else None
    ends = {"from": bounds and bounds.start, "until": bounds and bounds.until}
    return {
        "run_key": request.run_key if request else None,
        **{
            name: bound
            and {"said": bound.said, "at": at(bound.at_ms), "offsets_before_end": bound.back}
            for name, bound in ends.items()
        },
    }
