"""The page of the cases on stores: a line for each store, writer and row. Each store and writer
have a separate file of figures, case by case, so that several may be played at the same time, and
each be continued.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.published import FIGURES, Results, days, versions
from tests.chaos.stage import Case
from tests.chaos.writes import WRITES
from tests.stores.servers import STORES

_FOLDER = "crashes_on_stores"
_HEAD = """\
# What breaking it on stores showed

Made by `python -m tests.chaos --store moto`, by the same for the other stores and each `--writer`, and not by hand. Rows 1 to 10 of the
[crash matrix](CRASHES.md) where the table lies in a store, the two drivers of row 10 fewer times, and row 40, which
stores alone have. What was done in each case, what the table held after it and what the next run did is in the files of
`docs/crashes_on_stores`.

| row | what is done |
| ---: | --- |
| 1 | a run is killed or stopped before its plan is stored |
| 2 | after it is stored |
| 3 | when the partitions' owners are claimed |
| 4 | when the first rows are fetched: all processes, the driver alone, one worker |
| 5 | when half of the files are there: all, the driver alone, one worker; Ctrl-C and SIGTERM |
| 6 | when all files are there and no commit |
| 7 | after the commit, before the ledger and the offsets have it |
| 8 | when half of the offsets are moved, or all |
| 9 | the driver is paused past its session, a second one does the work, the first goes on, at each of these points |
| 10 | two drivers at the same moment |
| 40 | the commit's put is held, halved, late or not answered while the run is killed or paused; answers are lost, or 503 SlowDown |

The check uses neither `etl` nor its ledger: kafka-python reads the topic, delta-rs reads the table, and every (partition, offset, hash of
the value) must be in both, once. "Missing" counts records without a row, "double" rows beyond the first of one offset. The stores are moto
(S3, believes every key), versitygw (S3, looks at keys), Azurite (`azurite`) and MiniDFSCluster (`minidfs`), all on one machine; the writers
are those of the other pages: `spark`, `arrow` (Spark's tasks write files) and `processes` (without Spark).

Played with {versions}.
Played when: {days}.

**{cases} cases, {records:,} records, {rows:,} rows: {missing} missing, {double} double{left}.**

| store | writer | row | cases | records | rows | missing | double | left |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |
"""


class PublishedOnStores(Results):
    """The results of one store and writer; the page is written of all there are. `cases_on`: the
    cases of a kind of store.
    """

    def __init__(
        self, folder: Path, cases_on: Callable[[str], Sequence[Case]], store: str, writer: str
    ) -> None:
        super().__init__(_kept(folder, store, writer), cases_on(store))
        self._there = {kind: Counter(case.row for case in cases_on(kind)) for kind in STORES}
        self._folder, self.page = folder, folder / "CRASHES_ON_STORES.md"

    def write(self) -> None:
        """This one's figures, and the page."""
        self.keep()
        known = {
            (store, writer): json.loads(_kept(self._folder, store, writer).read_text())
            for store in STORES
            for writer in WRITES
            if _kept(self._folder, store, writer).exists()
        }
        shown = [one for results in known.values() for one in results.values()]
        failed = sum("failed" in one for one in shown)
        head = _HEAD.format(
            versions=versions(),
            days=days(shown),
            cases=len(shown),
            left=f"; {failed} CASES FAILED" if failed else "",
            **_sums(shown),
        )
        self.page.write_text(
            head
            + "".join(
                _line(
                    store,
                    writer,
                    row,
                    [one for one in results.values() if one["row"] == row],
                    there,
                )
                for (store, writer), results in known.items()
                for row, there in sorted(self._there[store].items())
            )
        )


def _kept(folder: Path, store: str, writer: str) -> Path:
    return folder / _FOLDER / f"{store}_{writer}.json"


def _line(
    store: str, writer: str, row: int, results: Sequence[Mapping[str, Any]], there: int
) -> str:
    failed = sum("failed" in one for one in results)
    left = [
        *([f"{failed} FAILED"] if failed else []),
        *([f"{there - len(results)} not played"] if there > len(results) else []),
    ]
    figures = [f"{figure:,}" for figure in _sums(results).values()]
    return (
        "| "
        + " | ".join([store, writer, str(row), str(len(results)), *figures, ", ".join(left)])
        + " |\n"
    )


def _sums(results: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    whole = [one["checked"] for one in results if "checked" in one]
    return {figure: sum(checked[figure] for checked in whole) for figure in FIGURES}
