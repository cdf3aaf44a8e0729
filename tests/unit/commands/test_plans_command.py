"""`etl run --dry-run` announces what the next run does, and `etl doctor` fails where it stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from etl.cli.screens import screen, show_preview
from etl.commands.doctor import check_snapshot
from etl.commands.doctor_machine import Verdict
from etl.commands.plans import Preview, preview_of, with_transform_checked
from etl.errors import NeedsDecision, NotOurTable, SettingsError
from etl.io.spark.session import session_there
from etl.model.columns import arrow_schema
from etl.report.run_progress import Outcome
from etl.settings.choices import WriterName
from etl.settings.sections import Settings
from tests.builders import with_keys
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    SETTINGS,
    SKIPPING,
    crash_at,
    expired_plan,
    grow,
    outcomes,
    outside_of,
    run,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When


def stored_and_grown(grown: int = 2) -> Outside:
    """A plan is stored, its driver died, and a log has grown since."""
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    grow(outside, grown, 0, 0)
    return outside


def with_a_lost_ledger() -> Outside:
    outside = outside_of(5, 3, 4)
    run(outside)
    outside.plans.clear()
    outside.applied.clear()
    return outside


REPLAYS = "the next run executes plan 1, which is stored and not in the table; "
CAPPED = settings_of(on_data_loss="skip", limits={"max_records_per_plan": 3})


@pytest.mark.parametrize(
    ("outside", "settings", "said"),
    [
        (lambda: stored_and_grown(), SETTINGS, f"{REPLAYS}then it makes plan 2"),
        (lambda: stored_and_grown(grown=0), SETTINGS, f"{REPLAYS}then it finds nothing new"),
        (expired_plan, CAPPED, "and the log now at 2; then it makes plan 2"),
        (
            with_a_lost_ledger,
            SKIPPING,
            "the next run first takes over plan 1 from the table, then finds nothing new",
        ),
    ],
    ids=["a stored plan", "nothing after it", "an expired plan", "a lost ledger"],
)
def test_a_preview_says_what_the_next_run_does(
    outside: Callable[[], Outside], settings: Settings, said: str
) -> None:
    assert preview(outside(), settings).summary.endswith(said)


def test_a_preview_lists_the_losses_that_the_next_run_then_records() -> None:
    outside, settings = outside_of(5, 3, 4), SKIPPING
    run(outside, settings)
    grow(outside, 5, 2, 0)
    outside.logs[LOGS[0]].log_start = 7
    found = preview(outside, settings)
    assert found.let_go == ("The next run gives up clicks 0: 2 offsets (5 to 7), expired",)
    lost = {**LOGS[0].place, "from": 5, "until": 7, "reason": "expired", "incarnation": 0}
    assert found.as_json()["losses"] == [{"plan": 2, **lost}]
    run(outside, settings)
    [(number, loss)] = outside.losses
    assert (number, loss.from_offset, loss.until_offset) == (2, 5, 7)


def test_a_plan_of_losses_only_is_described_as_abandoning_and_not_as_keeping_starts() -> None:
    outside = outside_of(5, 3, 4)
    run(outside, SKIPPING)
    outside.logs[LOGS[0]].end = outside.logs[LOGS[0]].log_start = 7
    announced = "the next run makes plan 2, which reads nothing and gives up 2 offsets"
    assert preview(outside, SKIPPING).summary == announced
    report = run(outside, SKIPPING)
    assert outcomes(report) == [Outcome.RECORDS_LOST, Outcome.OFFSETS_STORED]
    assert report.outcomes[-1][1] == "Plan 2 reads nothing and gives up 2 offsets"


@pytest.mark.parametrize("situation", ["another shape", "offsets gone", "above the end"])
def test_doctor_fails_where_plan_stops_with_the_same_error(situation: str) -> None:
    outside, settings = outside_of(5, 3, 4), SETTINGS
    if situation == "another shape":
        outside, settings = stored_and_grown(), settings_of(isolation_level="read_uncommitted")
    elif situation == "offsets gone":
        run(outside)
        grow(outside, 4, 0, 0)
        outside.logs[LOGS[0]].log_start = 7
    else:
        outside.move_offset(LOGS[0], 500)
    snapshot = FakeWorld(outside, settings).observe()
    with pytest.raises(NeedsDecision) as stops_plan:
        preview_of(snapshot, settings)
    with pytest.raises(NeedsDecision) as stops_doctor:
        list(check_snapshot("ledger and table", snapshot, settings, preview_of))
    assert type(stops_doctor.value) is type(stops_plan.value)
    assert str(stops_doctor.value) == str(stops_plan.value)


def test_the_doctor_reports_topics_without_a_way_to_detect_recreation_and_an_owner_elsewhere() -> (
    None
):
    outside = outside_of(5, 3, 4)
    outside.owners[LOGS[0]] = "consumer-1"
    snapshot = FakeWorld(outside, SETTINGS).observe()
    first, second = check_snapshot("x", snapshot, SETTINGS, preview_of)
    assert (first.name, first.verdict, second.verdict) == ("topic ids", Verdict.ADVICE, Verdict.OK)
    assert "runs cannot detect that clicks is recreated" in first.found
    outside.topic_ids["clicks"] = "id-1"
    snapshot = FakeWorld(outside, SETTINGS).observe()
    [line] = check_snapshot("x", snapshot, SETTINGS, preview_of)
    assert line.verdict is Verdict.OK


@pytest.fixture
def by_transform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """A conf that names a function of a module that lies there, and a table that does not."""
    body = "number = 7\n\ndef fails(rows):\n    raise ValueError('called with rows')\n"
    name = f"shaping_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(function: str, *partition_by: str) -> Settings:
        table = SETTINGS.table.model_copy(
            update={"written_path": str(tmp_path / "table"), "partition_by": partition_by}
        )
        return with_keys(
            SETTINGS, transform={"dataframe": function.replace("shaping", name)}, table=table
        )

    return made


def seen_by(settings: Settings, outside: Outside) -> Preview:
    return with_transform_checked(preview(outside, settings), settings)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("nowhere_at_all:fails", "cannot be imported: ModuleNotFoundError"),
        ("shaping:missing", "cannot be imported: AttributeError"),
        ("shaping:number", "is not a function"),
    ],
)
def test_plan_refuses_a_transform_that_the_run_would_not_find(
    by_transform: Callable[..., Settings], function: str, why: str
) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        seen_by(by_transform(function), outside_of(5, 3, 4))
    assert refused.value.where["key"] == "transform.dataframe"


def test_plan_reports_that_the_transform_was_not_run_and_starts_no_spark(
    by_transform: Callable[..., Settings],
) -> None:
    found = seen_by(by_transform("shaping:fails", "colour"), outside_of(5, 3, 4))
    [reported] = found.as_json()["not_checked"]
    assert "`etl doctor` checks them" in reported and session_there() is None
    with screen.capture() as shown:
        show_preview(found)
    assert reported in shown.get()


_BYTES = "by key: Delta keeps .* bytes come back as others"


@pytest.mark.parametrize(
    ("is_by", "partition_by", "error", "why"),
    [
        ("topic", ("partition",), NotOurTable, "partitioned by topic, the conf sets partition"),
        # no setting in the conf solves it, so none is advised
        ("key", ("key",), SettingsError, _BYTES),
        ("key", ("partition",), SettingsError, _BYTES),
        ("key", (), SettingsError, _BYTES),
    ],
)
def test_plan_refuses_a_table_that_no_transform_could_be_written_to(
    by_transform: Callable[..., Settings],
    is_by: str,
    partition_by: tuple[str, ...],
    error: type[SettingsError],
    why: str,
) -> None:
    settings = by_transform("shaping:fails", *partition_by)
    DeltaTable.create(settings.table.path, arrow_schema(), partition_by=[is_by])
    with pytest.raises(error, match=why):
        seen_by(settings, outside_of(5, 3, 4))


def test_a_transform_is_not_loaded_if_the_run_would_not_use_it(
    by_transform: Callable[..., Settings],
) -> None:
    outside, settings = outside_of(5, 3, 4), by_transform("nowhere_at_all:fails")
    run(outside, settings)
    found = seen_by(settings, outside)
    assert (found.summary, found.not_checked) == ("the next run finds nothing new", ())
    assert seen_by(SETTINGS, outside_of(5, 3, 4)).not_checked == ()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("nowhere_at_all:fails", "The function of transform.record_batch cannot be imported"),
        ("shaping:fails", "The Arrow transform failed for an empty batch:"),
    ],
)
def test_plan_refuses_an_arrow_transform_that_the_run_would_not_store_a_plan_for(
    by_transform: Callable[..., Settings], function: str, why: str
) -> None:
    settings = by_transform(function)
    transform = {"dataframe": None, "record_batch": settings.transform.dataframe}
    with pytest.raises(SettingsError, match=why) as refused:
        seen_by(with_keys(settings, transform=transform), outside_of(5, 3, 4))
    assert refused.value.where["key"] == "transform.record_batch"


def test_plan_refuses_a_writer_that_the_run_would_not_find(
    by_transform: Callable[..., Settings],
) -> None:
    settings = by_transform("shaping:fails")
    table = settings.table.model_copy(update={"writer": WriterName.ARROW})
    with pytest.raises(SettingsError, match="the transform takes a DataFrame"):
        seen_by(settings.model_copy(update={"table": table}), outside_of(5, 3, 4))


def preview(outside: Outside, settings: Settings = SETTINGS) -> Preview:
    return preview_of(FakeWorld(outside, settings).observe(), settings)
