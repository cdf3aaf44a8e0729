"""The backfills beside the pipeline: whether one waits for somebody to go on with it."""

from __future__ import annotations

from collections.abc import Iterator

from etl.commands.backfills import State, backfills_beside
from etl.doctor.check import Findings, Line, advice, ok
from etl.io.zookeeper.ledger import PlanLedger


def unfinished(name: str, findings: Findings) -> Iterator[Line]:
    """A line for each that is not whole, and one for all others; none where nobody has begun one."""
    ledger = PlanLedger(findings.zookeeper, findings.settings.group, findings.settings.pipeline)
    done = 0
    for one in backfills_beside(ledger):
        said = f"{one['name']} is {one['state']}: {one['loaded']:,} of {one['offsets']:,} offsets are loaded"
        if one["state"] == State.STOPPED.value:
            to_do = f"`etl backfill resume CONF --name {one['name']}`, or `etl backfill abandon`"
            yield advice(name, said, to_do)
        elif one["state"] == State.CLOSING.value:
            yield advice(
                name,
                said,
                f"`etl backfill abandon CONF --name {one['name']} --reason ...`, which ends that",
            )
        elif one["state"] == State.AT_WORK.value:
            yield ok(name, said)
        else:
            done += 1
    if done:
        yield ok(name, f"{done:,} are whole or were given up: what they have loaded is theirs")
