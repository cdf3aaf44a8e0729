"""Play the crash matrix and write docs/proof/crashes.md, or docs/proof/stores.md for tables in a
store.

`python -m tests.chaos [--rows 1,2,13] [--name TEXT ...] [--unplayed] [--writer arrow|processes]
[--write-to FOLDER] [--store moto|versitygw|azurite|minidfs] [--render]`
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from etl.testkit.cluster import EmbeddedCluster
from tests.chaos.collected import ALL, cases_on
from tests.chaos.published import Published, PublishedOnStores
from tests.chaos.stage import WRITES, Case, CaseResult, Stage
from tests.conftest import small_session
from tests.stores.servers import STORES, StoreServer
from tests.stores.way import FaultyWay
from tests.system.driving import ROOT


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the chosen cases one after the other; 1 when one of them failed."""
    parser = _parser()
    request = parser.parse_args(arguments)
    published, cases = _published(request.write_to, request.writer, request.store)
    published.write()  # new cases may exist since, and it lists those that were not played
    if request.render:
        return 0
    chosen = [case for case in cases if not request.rows or case.row in request.rows]
    chosen = [case for case in chosen if any(name in case.name for name in request.name or [""])]
    chosen = [case for case in chosen if not (request.unplayed and published.is_whole(case))]
    if not chosen:
        print("no case is called so, or all of them were played", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="etl-chaos-") as folder,
        EmbeddedCluster(folder=Path(folder, "cluster")) as cluster,
        _stored(request.store, Path(folder, "store")) as (store, way),
        small_session(Path(folder, "warehouse"), for_path=store.url("x") if store else None),
    ):
        failed = 0
        for number, case in enumerate(chosen, start=1):
            began = time.monotonic()
            with Stage(
                cluster, Path(folder, f"case-{number}"), writer=request.writer, store=store, way=way
            ) as stage:
                reported, failure = _played(case, stage)
            failed += reported is None
            published.played(case, reported, failure)
            published.write()
            print(
                f"{number:3}/{len(chosen)} row {case.row:2} {case.name}: "
                f"{_in_short(reported, failure)} "
                f"({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    print(f"{len(chosen)} cases played, {failed} failed; the table is {published.page}")
    return 1 if failed else 0


@contextlib.contextmanager
def _stored(
    kind: str | None, folder: Path
) -> Iterator[tuple[StoreServer | None, FaultyWay | None]]:
    """The store of the tables, with its secrets in the environment; None: folders."""
    if kind is None:
        yield None, None
        return
    with STORES[kind](folder / "server") as store:
        os.environ.update(store.secrets)
        with store.way(store.port, folder / "way") as way:
            store.reached_by = way.port
            yield store, way


def _published(
    folder: Path, writer: str, store: str | None
) -> tuple[Published | PublishedOnStores, Sequence[Case]]:
    if store is None:
        return Published(folder, ALL, writer), ALL
    return PublishedOnStores(folder, cases_on, store, writer), cases_on(store)


def _played(case: Case, stage: Stage) -> tuple[CaseResult | None, str]:
    """The result of the case, or its failure; the next case is played in any event."""
    try:
        return case.play(stage), ""
    except Exception as error:
        traceback.print_exc()
        return None, f"{type(error).__name__}: {error}"


def _in_short(reported: CaseResult | None, failure: str) -> str:
    if reported is None:
        return f"FAILED: {failure.splitlines()[0]}"
    return (
        f"{reported.after} -> {reported.next_run} -> {reported.checked.records} records, "
        f"{reported.checked.rows} rows"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Play the crash matrix."
    )
    parser.add_argument(
        "--rows",
        type=lambda text: {int(one) for one in text.split(",")},
        help="rows of the matrix: 1,2,13",
    )
    parser.add_argument(
        "--name",
        action="append",
        help="only cases whose name has this text; given several times: one of them",
    )
    parser.add_argument(
        "--unplayed", action="store_true", help="go on: only cases without a result, or that failed"
    )
    parser.add_argument(
        "--writer",
        choices=list(WRITES),
        default="spark",
        help="who writes the rows: Spark; arrow: its tasks, into files of their own; processes: "
        "the same tasks without Spark",
    )
    parser.add_argument(
        "--store",
        choices=list(STORES),
        help="where the tables lie: rows 1 to 10 and 40 are played there",
    )
    parser.add_argument(
        "--write-to",
        type=Path,
        default=ROOT / "docs" / "proof",
        help="the folder of the page and of the results (default: docs/proof)",
    )
    parser.add_argument(
        "--render", action="store_true", help="play nothing: write the page from the results"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
