"""Rows 28 and 29: the kills of rows 1 to 8 and the two drivers of row 10 on brokers of other
generations, two of them in each cluster.

The same cases, those of two drivers fewer times; what differs, how others write and read there, is
`tests.traffic`'s.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from tests.chaos import cases_kill, cases_zombie
from tests.chaos.kept import kept
from tests.chaos.stage import Case, CaseResult, Stage

_AGAIN = (*cases_kill.CASES, *cases_zombie.two_drivers(started=2, stored=2, appended=2))


def played_on(stage: Stage, *, version: str, case: Case) -> CaseResult:
    """A case on brokers of that version; all cases share them."""
    cluster = kept(version, lambda folder: EmbeddedCluster(2, version=version, folder=folder))
    with Stage(cluster, stage.folder, writer=stage.writer) as other:
        return case.play(other)


def _on(row: int, version: str, name: str) -> tuple[Case, ...]:
    return tuple(
        replace(
            case,
            row=row,
            name=f"{case.name}, {version}",
            what=f"{name}: {case.what}",
            short=False,
            play=partial(played_on, version=version, case=case),
        )
        for case in _AGAIN
    )


CASES: tuple[Case, ...] = (*_on(28, JAFKA, "Jafka"), *_on(29, "0.8.2.2", "Kafka 0.8.2.2"))
