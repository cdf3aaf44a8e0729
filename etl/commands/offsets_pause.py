"""`etl offsets pause` and `etl offsets resume`: a log keeps its position and gets no range, from
the next plan on, until it is resumed.

What a pause means is `decide.set_offsets`'s. Brokers are asked only for names that the ledger does
not know, so that a log can be paused and resumed while they are away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from etl.commands.operator import Ruling
from etl.commands.run import new_run_id
from etl.decide.set_offsets import Changed, pausing, resuming
from etl.io.process import user_at_host
from etl.io.zookeeper.ledger_records import read_pauses_at, write_pauses
from etl.model.partitions import BrokerPartition, Named, parse_named
from etl.model.plans import Plan
from etl.model.snapshot import Pause
from etl.report.lag import described_pause
from etl.run.discovery import Discovery
from etl.run.live import LiveServices
from etl.run.services import ALONE, now_ms
from etl.run.shell import open_world
from etl.settings.sections import Settings

_Change = Callable[[Sequence[Pause], Iterable[Named], frozenset[BrokerPartition]], Changed]


def pause(settings: Settings, names: Sequence[str], reason: str) -> Ruling:
    """Pause logs, each named `TOPIC` or `TOPIC:PARTITION`; one that is paused stays as it is.

    Raises SettingsError for a log that nobody knows, Owned while somebody drives the pipeline, and
    what asking brokers raises.
    """

    def change(
        pauses: Sequence[Pause], named: Iterable[Named], known: frozenset[BrokerPartition]
    ) -> Changed:
        return pausing(pauses, named, known, reason=reason, by=user_at_host(), now_ms=now_ms())

    return _changed(settings, names, change)


def resume(settings: Settings, names: Sequence[str], reason: str) -> Ruling:
    """Resume logs; a topic's name resumes its partitions, too. Raises as `pause`, and for a
    partition whose topic is paused as a whole.
    """
    return _changed(settings, names, resuming, reason)


def _changed(
    settings: Settings, names: Sequence[str], change: _Change, reason: str | None = None
) -> Ruling:
    named = [parse_named(name) for name in names]
    with open_world(settings, ALONE) as world, world.driving(new_run_id()):
        before, version = read_pauses_at(world.ledger)
        ledger = world.ledger.read_ledger()
        after = change(before, named, _known(world, named, before, ledger.newest))
        if after.pauses != before:
            write_pauses(world.ledger, after.pauses, version)
    says = [*after.says, *([f"why: {reason}"] if reason and after.pauses != before else ())]
    stored = ledger.newest if ledger.newest and ledger.applied is None else None
    says += _told_stored(stored, after.pauses, before)
    return Ruling(
        "\n".join(says),
        {
            "says": says,
            "reason": reason,
            "changed": after.pauses != before,
            "paused": [described_pause(one) for one in after.pauses],
        },
    )


def _known(
    world: LiveServices, named: Iterable[Named], pauses: Iterable[Pause], newest: Plan | None
) -> frozenset[BrokerPartition]:
    """The logs that the ledger knows; where one is named that is not among them, those of the
    brokers, too.
    """
    known = {
        *(newest.positions if newest else ()),
        *(newest.pending_starts if newest else ()),
        *(one.log for one in pauses if one.log),
    }
    whole = {one.topic for one in pauses if one.log is None}
    if all(one.topic in whole or any(one.covers(log) for log in known) for one in named):
        return frozenset(known)
    discovery = Discovery(world.settings, world.zookeeper)
    with discovery.open_cluster(known if world.settings.source.is_physical else ()) as cluster:
        described = discovery.describe(cluster, ())
    admits = world.settings.source.topics.admits
    return frozenset(
        (
            *known,
            *(
                p.log
                for name, topic in described.topics.items()
                if admits(name)
                for p in topic.partitions
            ),
        )
    )


def _told_stored(stored: Plan | None, after: Iterable[Pause], before: Sequence[Pause]) -> list[str]:
    """That a plan which is stored reads what is paused now, for a stored plan is executed whole."""
    new = [one for one in after if one not in before]
    if stored is None or not any(one.covers(r.log) for one in new for r in stored.ranges):
        return []
    return [
        f"plan {stored.number} is stored and reads some of that: it is executed whole, and what is paused rests behind it"
    ]
