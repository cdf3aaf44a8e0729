"""The cases of `matrix.yaml`, and those that are repeated on other brokers and in stores."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from tests.chaos.cases_disk import MAY_MOUNT
from tests.chaos.stage import Case, CaseResult, Stage, kept
from tests.stores.servers import STORES

_MATRIX: Mapping[int, Any] = yaml.safe_load(Path(__file__).with_name("matrix.yaml").read_text())
_ON_STORES_ALONE, _ON_JAFKA, _ON_OLD_KAFKA, _PAUSED_ON_JAFKA = 40, 28, 29, 30
_PAUSED = (
    "zombie after the plan is stored",
    "zombie whose workers went on",
    "zombie with half its files",
    "zombie before the offsets",
)

ROWS: Mapping[int, str] = {row: one["situation"] for row, one in _MATRIX.items()}
"""The situation of a row's cases, printed on the pages in docs/proof."""


def played_by(name: str) -> Callable[..., CaseResult]:
    module, _, function = name.partition(".")
    found = importlib.import_module(f"tests.chaos.{'' if module == 'ways' else 'cases_'}{module}")
    play: Callable[..., CaseResult] = getattr(found, function)
    return play


def _of_row(row: int, *, times: int | None = None) -> tuple[Case, ...]:
    """The cases of a row; `times`: so often where two drivers are at work again and again."""
    return tuple(
        _case(row, name, dict(entry), times) for name, entry in _MATRIX[row]["cases"].items()
    )


def _case(row: int, name: str, given: dict[str, Any], times: int | None) -> Case:
    play, what, short = given.pop("play"), given.pop("what", name), given.pop("short", False)
    if times and given.get("times", 1) > 1:
        given["times"] = times
    what = what.format(times=given.get("times"))
    return Case(row, name, what, partial(played_by(play), **given), short)


def _given(case: Case, name: str) -> Any:
    return case.play.keywords.get(name) if isinstance(case.play, partial) else None


def _mounts(case: Case) -> bool:
    return case.row == 20 and _given(case, "taken") not in ("table", "log")


def _played_on(stage: Stage, *, version: str, case: Case) -> CaseResult:
    """A case on two brokers of that version; all cases share them."""
    cluster = kept(version, lambda folder: EmbeddedCluster(2, version=version, folder=folder))
    with Stage(cluster, stage.folder, writer=stage.writer) as other:
        return case.play(other)


def _on(
    row: int, version: str, called: str, cases: Iterable[Case], named: str | None = None
) -> tuple[Case, ...]:
    return tuple(
        replace(
            case,
            row=row,
            name=f"{case.name}, {named or version}",
            what=f"{called}: {case.what}",
            short=False,
            play=partial(_played_on, version=version, case=case),
        )
        for case in cases
    )


_KILLS = tuple(case for row in range(1, 9) for case in _of_row(row))
_AGAIN = (*(case for case in _KILLS if not case.name.startswith("SIG")), *_of_row(10, times=2))
_MORE: Mapping[int, tuple[Case, ...]] = {
    _ON_JAFKA: _on(_ON_JAFKA, JAFKA, "Jafka", _AGAIN),
    _ON_OLD_KAFKA: _on(_ON_OLD_KAFKA, "0.8.2.2", "Kafka 0.8.2.2", _AGAIN),
    _PAUSED_ON_JAFKA: _on(
        _PAUSED_ON_JAFKA,
        JAFKA,
        "Jafka",
        (case for case in _of_row(9) if case.name in _PAUSED),
        named="Jafka",
    ),
}
ALL: list[Case] = [
    case
    for row in _MATRIX
    if row != _ON_STORES_ALONE
    for case in (*_of_row(row), *_MORE.get(row, ()))
    if MAY_MOUNT or not _mounts(case)
]


def cases_on(store: str) -> tuple[Case, ...]:
    """The cases on a kind of store: not each can throttle."""
    return (
        *(case for row in range(1, 10) for case in _of_row(row)),
        *_of_row(10, times=2),
        *(
            case
            for case in _of_row(_ON_STORES_ALONE)
            if _given(case, "fault") in (None, *STORES[store].way.faults)
        ),
    )
