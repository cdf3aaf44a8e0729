"""Commits to stores that throttle or lose answers, and the probe of If-None-Match."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow import fs

from etl.errors import NoExclusiveCreate, PermissionDenied, TableUnreachable
from etl.io.delta.append import ArrowWriter, Destination, Load, append
from etl.io.delta.exclusive_create_probe import require_exclusive_create
from etl.io.delta.loaded_plans import Result
from etl.io.delta.log import open_log
from etl.io.delta.losses import read_losses, record_losses
from etl.io.delta.table_shape import open_table
from etl.model.plans import Loss, LossReason, Plan
from etl.model.security import parse_reference
from etl.settings.table import StoreSettings, TablePath
from tests.fakes.file_tasks import APP, LOG, Tasks, plan_of
from tests.stores.servers import STORES, StoreServer
from tests.stores.way import FaultyWay, Rule

ROWS = 15


class Place:
    """A table in a store, by a way that may fail."""

    def __init__(self, store: StoreServer, way: FaultyWay, name: str) -> None:
        store.reached_by = way.port
        result = {
            key: (parse_reference(value) or value) if isinstance(value, str) else value
            for key, value in store.settings().items()
        }
        self.way, self._store = way, store
        self.path = TablePath(store.url(name), StoreSettings.model_validate(result))

    def appended(self, number: int) -> Result:
        """Plan `number`, by files of tasks."""
        table_id = str(self.table().metadata().id) if number > 1 else None
        plan = plan_of(number, table_id=table_id)
        return append(
            Load(ArrowWriter(), Tasks(plan)),
            plan,
            Destination(self.path, APP, known=0 if number > 1 else None),
        ).result

    def table(self) -> DeltaTable:
        """As it is, by the way that never fails."""
        return DeltaTable(self.path, storage_options=self._store.options())

    def files(self) -> list[str]:
        found = open_log(self.path).get_file_info(
            fs.FileSelector("", recursive=True, allow_not_found=True)
        )
        return [one.path for one in found]

    def rows(self) -> int:
        return int(self.table().to_pyarrow_table(columns=["offset"]).num_rows)


@pytest.fixture(
    scope="module",
    params=[
        "moto",
        pytest.param(
            "azurite",
            marks=[
                pytest.mark.networks,
                pytest.mark.skipif(shutil.which("npm") is None, reason="no npm here"),
            ],
        ),
        pytest.param(
            "versitygw",
            marks=[
                pytest.mark.networks,
                pytest.mark.skipif(shutil.which("go") is None, reason="no Go here"),
            ],
        ),
    ],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StoreServer, FaultyWay]]:
    """Each of the stores, and the way to it."""
    folder = tmp_path_factory.mktemp(request.param)
    with (
        STORES[request.param](folder / "store") as store,
        FaultyWay(store.port, folder / "way") as way,
    ):
        yield store, way


@pytest.fixture
def place(
    server: tuple[StoreServer, FaultyWay], unused_group: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A table that is not there yet."""
    server[0].give_secrets(monkeypatch)
    yield Place(*server, unused_group)
    server[1].rules()


def test_a_store_that_ignores_if_none_match_is_refused_by_name(
    tmp_path: Path, unused_group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy drops the header. Other stores sign it, so that a proxy cannot drop it."""
    with (
        STORES["moto"](tmp_path / "store") as store,
        FaultyWay(store.port, tmp_path / "way", without="If-None-Match") as way,
    ):
        store.give_secrets(monkeypatch)
        careless = Place(store, way, unused_group)
        with pytest.raises(
            NoExclusiveCreate,
            match="ignores If-None-Match: two writers could replace each other's commit",
        ) as caught:
            require_exclusive_create(careless.path)
        assert (caught.value.exit_code, caught.value.where["path"]) == (7, careless.path)
        assert str(way.port) in caught.value.where["store"]
        assert careless.files() == []


def test_the_probe_leaves_nothing(place: Place) -> None:
    require_exclusive_create(place.path)
    assert place.files() == [] and open_table(place.path) is None
    assert place.appended(1) is Result.APPLIED
    before = place.files()
    require_exclusive_create(place.path)
    assert place.files() == before


def test_a_probe_without_write_permission_reports_it(place: Place) -> None:
    place.way.rules(Rule("PUT", "_delta_log/0", 10, "denied"))
    with pytest.raises(PermissionDenied, match="The store denies access:"):
        require_exclusive_create(place.path)


def test_a_lost_answer_to_the_probe_is_no_fault_of_the_store(place: Place) -> None:
    """The client retries, and its own file rejects the retry."""
    place.way.rules(Rule("PUT", "_delta_log/0", 2, "lose"))
    require_exclusive_create(place.path)
    assert place.way.kept == [2]


@pytest.mark.parametrize("fault", ["lose", pytest.param("slow", marks=pytest.mark.networks)])
def test_one_answer_that_is_lost_or_refused_for_now_changes_nothing(
    place: Place, fault: str
) -> None:
    """At the first commit, at the next one, at the files of tasks, and at a look."""
    put = (
        [Rule("PUT", "_delta_log/0", 1, fault)],
        [Rule("PUT", "part-", 1, fault), Rule("POST", "part-", 1, fault)],
    )
    for number, rules in enumerate((put[0], put[0], put[1]), start=1):
        place.way.rules(*rules)
        assert place.appended(number) is Result.APPLIED
        assert sum(place.way.kept) >= 1 and place.rows() == number * ROWS
    place.way.rules(Rule("GET", "_delta_log", 2, fault))
    found = open_table(place.path)
    assert found is not None and found.version() == 2 and place.way.kept == [2]


@pytest.mark.networks
def test_the_next_run_finishes_a_throttled_plan(place: Place) -> None:
    assert place.appended(1) is Result.APPLIED
    place.way.rules(Rule("PUT", "_delta_log/0", 10_000, "slow"))
    with pytest.raises(TableUnreachable, match="503") as caught:
        place.appended(2)
    assert caught.value.exit_code == 7 and caught.value.retriable and place.rows() == ROWS
    place.way.rules()
    assert place.appended(2) is Result.APPLIED and place.rows() == 2 * ROWS


@pytest.mark.networks
def test_a_commit_of_which_no_answer_ever_comes_is_found_in_the_table(place: Place) -> None:
    assert place.appended(1) is Result.APPLIED
    place.way.rules(Rule("PUT", "_delta_log/0", 10_000, "lose"))
    assert place.appended(2) is Result.APPLIED and place.rows() == 2 * ROWS
    place.way.rules()
    assert place.appended(2) is Result.APPLIED and place.rows() == 2 * ROWS


@pytest.mark.parametrize("fault", ["lose", pytest.param("slow", marks=pytest.mark.networks)])
def test_losses_are_written_down_once(place: Place, fault: str) -> None:
    plan: Plan = plan_of(1, lost=(Loss(LOG, 3, 5, LossReason.EXPIRED),))
    place.way.rules(Rule("PUT", "_delta_log/0", 2, fault))
    for _ in range(2):
        record_losses(plan, app_id=APP, path=place.path)
    assert (
        place.way.kept == [2]
        and read_losses(place.path, uid=plan.origin.pipeline_id) == plan.losses.lost
    )
