"""`etl replay`: dry run, options, and when it needs no confirmation."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from etl.cli import main
from etl.commands import replay
from etl.commands.replay import Copied, parse_bound, parse_wanted, preview_of, reject_foreign_table
from etl.errors import DataLoss, SettingsError
from etl.model.partitions import Retention
from etl.model.snapshot import Pause
from etl.run.loaded_rows import PutInto
from etl.settings.source import Timestamp
from tests.builders import plain_settings, with_facts
from tests.command_result import Terminal
from tests.fakes.outside import Outside
from tests.fakes.stories import LOGS, SETTINGS, crash_at, new_report, outside_of, run
from tests.fakes.world import Crash, FakeWorld, When

REPLAY = "replay conf/examples/clicks.yaml -p clicks --reason seen --from 0 --until 9".split()


def test_a_dry_run_counts_the_rows_that_go_and_those_that_may_come_and_stores_nothing() -> None:
    outside = outside_of(5, 3, 4)
    outside.logs[LOGS[0]].missing = {1}
    run(outside)
    world = FakeWorld(outside, SETTINGS)
    found = preview_of(world, world.observe(), SETTINGS, parse_wanted(("clicks:0",), "0", "4"))
    assert found.summary == "3 rows of clicks go, and at most 4 come, in one commit of plan 2"
    [replaced] = found.as_json()["replaces"]
    counts = {"rows_that_go": 3, "rows_that_come_at_most": 4}
    assert replaced == {"topic": "clicks", "partition": 0, "from": 0, "until": 4, **counts}
    assert found.notes == () and sorted(outside.plans) == [1]


def test_a_dry_run_reports_paused_logs_and_topics_that_may_return_fewer_rows() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    outside.pauses = (Pause("clicks", LOGS[0], "broken", "kim@h", 5),)
    world = FakeWorld(outside, SETTINGS)
    seen = with_facts(world.observe(), retention={"clicks": Retention(is_compacted=True)})
    notes = preview_of(world, seen, SETTINGS, parse_wanted(("clicks",), "0", "3")).notes
    assert sorted(notes) == [
        "clicks 0 is paused since 1970-01-01T00:00:00.005+00:00 by kim@h: broken. The named "
        "offsets are loaded, and it stays paused",
        "the topic clicks is compacted: of keys that were written again since, the older rows go "
        "and none come",
    ]


def stored(grown: int) -> Outside:
    """Plan 1 is loaded, plan 2 is stored and not in the table."""
    outside = outside_of(5, 3, 4)
    run(outside)
    for partition in LOGS:
        outside.logs[partition].grow(grown)
    with pytest.raises(Crash):
        run(outside, at=crash_at("fetch", When.AFTER))
    return outside


@pytest.mark.parametrize(
    ("start", "until", "then"),
    [
        ("0", "4", "4 rows of clicks go, and at most 4 come"),
        ("4", "7", "1 rows of clicks and those that it brings there go, and at most 3 come"),
    ],
)
def test_a_dry_run_names_the_plan_that_is_executed_first_and_may_reach_into_its_offsets(
    start: str, until: str, then: str
) -> None:
    world = FakeWorld(stored(3), SETTINGS)
    found = preview_of(world, world.observe(), SETTINGS, parse_wanted(("clicks:0",), start, until))
    assert (found.plan.number, found.as_json()["first_executes"]) == (3, 2)
    first = "plan 2, which is stored and not in the table, is executed first"
    assert found.summary == f"{first}; then {then}, in one commit of plan 3"


@pytest.mark.parametrize(
    "text", ["", "-5", "1.5", "yesterday", "2026-01-31T00:00:00", "1960-01-01T00:00:00Z", "٣"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match="e.g. 1200, or a time with its UTC offset"):
        parse_bound(text, key="--until")


@pytest.mark.parametrize("partition", ["clicks:", "clicks:01", "", "cl/icks:1"])
def test_a_topic_or_partition_that_is_none_is_refused(partition: str) -> None:
    with pytest.raises(SettingsError):
        parse_wanted((partition,), "0", "9")


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["no terminal", "with --json"])
def test_without_a_terminal_it_is_rejected_before_any_observation(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main([*REPLAY, *words]) == 2
    result = capsys.readouterr().err
    assert "there is no terminal for" in result
    assert "--dry-run which rows would be replaced, then pass --yes" in result


def test_a_dry_run_of_another_table_has_nothing_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REPLAY, "--into", "x", "--dry-run"]) == 2
    assert "--into removes no row of the pipeline's table," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("into", "why"),
    [
        ("~/again", "begins with ~"),
        ("s3:/bucket/again", "it is not a URL"),
        ("{here}/clicks", "the pipeline's own table"),
        ("{here}/clicks/again", "inside the other"),
        ("{here}", "inside the other"),
        ("{here}/clicks_losses", "inside the other"),
    ],
)
def test_a_place_that_is_another_than_was_meant_or_belongs_to_another_table_is_refused(
    into: str, why: str, tmp_path: Path
) -> None:
    settings = plain_settings(table={"path": f"{tmp_path}/clicks"})
    with pytest.raises(SettingsError, match=why) as raised:
        replay.replay_into(
            settings, parse_wanted(("clicks",), "0", "9"), into.format(here=tmp_path)
        )
    assert raised.value.where["key"] == "--into"


def test_a_table_that_no_earlier_replay_made_is_left_alone(tmp_path: Path) -> None:
    copy, ours = str(tmp_path / "copy"), str(tmp_path / "ours")
    write_deltalake(copy, pa.table({"offset": [1]}))
    text = json.dumps({"app": "offset-range-etl replay", "group": "g", "pipeline": "clicks"})
    write_deltalake(
        ours,
        pa.table({"offset": [1]}),
        commit_properties=CommitProperties(custom_metadata={"userMetadata": text}),
    )
    DeltaTable(ours).optimize.compact()
    with pytest.raises(SettingsError, match="no earlier --into made"):
        reject_foreign_table(copy, "g", "clicks")
    reject_foreign_table(ours, "g", "clicks")
    reject_foreign_table(str(tmp_path / "nothing"), "g", "clicks")
    with pytest.raises(SettingsError, match="for pipeline clicks of group g, and those of equal"):
        reject_foreign_table(ours, "another", "clicks")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 130), ("", 130)])
def test_on_a_terminal_it_shows_the_rows_to_replace_and_executes_only_the_confirmed_plan(
    answer: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outside, did, out = outside_of(5, 3, 4), list[str](), Terminal()
    run(outside)
    world = FakeWorld(outside, SETTINGS)

    def preview(settings: Any, wanted: Any, context: Any) -> Any:
        return preview_of(world, world.observe(), SETTINGS, wanted)

    def replayed(*_: Any, shown: Any, **__: Any) -> Any:
        assert shown.replaced_rows == {LOGS[0]: 3}
        did.append("replay")
        return new_report()

    monkeypatch.setattr(replay, "preview_replay", preview)
    monkeypatch.setattr(replay, "replay_rows", replayed)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    words = "replay conf/examples/clicks.yaml -p clicks:0 --reason seen --from 0 --until 3"
    with capsys.disabled():
        monkeypatch.setattr("sys.stdout", out)
        assert main(words.split()) == code
    assert did == ["replay"] * (code == 0)
    assert "3 rows of clicks go, and at most 3 come" in out.getvalue()


def test_a_replay_into_another_table_waits_for_a_stored_plan_that_no_run_can_execute_and_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = stored(3)
    outside.logs[LOGS[1]].log_start = 4  # retention, inside the range of the stored plan
    services = contextlib.nullcontext(FakeWorld(outside, SETTINGS))
    monkeypatch.setattr(replay, "open_services", lambda *_, **__: services)
    with pytest.raises(DataLoss, match="are gone"):
        replay.replay_into(SETTINGS, parse_wanted(("clicks:0",), "0", "4"), "other")


def test_ranges_in_another_table_are_reported_in_one_sentence() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    world = FakeWorld(outside, SETTINGS)
    plan = preview_of(world, world.observe(), SETTINGS, parse_wanted(("clicks:0",), "0", "4")).plan
    assert Copied("other", plan, PutInto(0, 4, 4)).summary == "4 rows are in other, each once"
    reported = Copied("other", plan, PutInto(4, 3, None)).as_json()
    assert reported["message"] == "3 rows are in other, each once; they took the place of 4"
    assert reported["replaces"] == [{"topic": "clicks", "partition": 0, "from": 0, "until": 4}]


@pytest.mark.parametrize(
    ("text", "bound"),
    [("0", 0), ("1200", 1200), ("1970-01-01T00:00:09Z", 9_000), ("1970-01-01T02:00:00+02:00", 0)],
)
def test_a_bound_is_an_offset_or_a_time_with_its_zone_or_before_now(text: str, bound: int) -> None:
    found = parse_bound(text, key="--from")
    assert (found.ms if isinstance(found, Timestamp) else found) == bound
    day, hour = (parse_bound(before, key="--from") for before in ("-1d", "-1h"))
    assert isinstance(day, Timestamp) and isinstance(hour, Timestamp)
    assert hour.ms - day.ms == pytest.approx(23 * 3_600_000, abs=60_000)
