"""`etl backfills run`: preview, confirmation and progress."""

from __future__ import annotations

import io
import json
import zlib
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from etl.cli import main
from etl.commands import backfill
from etl.commands.backfill import BackfillPreview, pace_of, parse_backfill_request, preview_backfill
from etl.decide.backfill import BackfillRequest
from etl.errors import LedgersDisagree, RecordTooLarge, SettingsError
from etl.ledger.documents import parse, render
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import Backfill, Pause
from etl.reader.options import with_pipeline_advice
from etl.report.run_progress import Doing, ReadSoFar, Verb, format_progress
from etl.report.run_report import BackfillProgress, progress_of_backfill
from etl.run.backfill import Beginning, action_for_backfill
from etl.settings.choices import BACKFILL_PLAN_BYTES, OnActiveMembers
from etl.settings.load import settings_of_backfill
from tests.builders import plain_plan, plain_settings, with_facts
from tests.command_result import Terminal, run_etl
from tests.fakes.stories import LOGS, new_report, outside_of, run, settings_of
from tests.fakes.world import FakeWorld

LATEST = settings_of(starting_offsets="latest")
NEW = "backfills run conf/examples/clicks.yaml old --from 0 --until 3".split()
LOG = TopicPartition("clicks", 0)
REQUESTED = Backfill(
    "old",
    {LOG: ((0, 10), (20, 30)), TopicPartition("clicks", 1): ((5, 9),)},
    {LOG: 2},
    "from 0 until 30",
    7,
)


def preview() -> BackfillPreview:
    outside = outside_of(5, 3, 4)
    run(outside, LATEST)
    request = parse_backfill_request("0", "3", ("clicks:0", "clicks:1"))
    return BackfillPreview(beginning_of(FakeWorld(outside, LATEST), request), "clicks", 250)


def beginning_of(world: FakeWorld, request: BackfillRequest) -> Beginning:
    return backfill._beginning(world, settings_of_backfill(LATEST, "old"), "old", request)


def test_a_dry_run_lists_paused_offsets_and_offsets_that_other_members_read() -> None:
    found = preview()
    pause = Pause("clicks", None, "broken", "kim@h", 5)
    paused = with_facts(found.beginning.snapshot, pauses=(pause,))
    beginning = replace(found.beginning, read_by_others=2, snapshot=paused)
    read, first, second = replace(found, beginning=beginning).notes
    others = "2 offsets of these were read by other members of the group"
    assert read == f"{others}; the table gets them, too"
    assert first.startswith(
        "clicks 0 is paused since 1970-01-01T00:00:00.005+00:00 by kim@h: broken."
    )
    assert second.startswith("clicks 1 ")
    world = FakeWorld(outside_of(5, 3, 4), LATEST)
    with pytest.raises(SettingsError, match="This pipeline has loaded nothing yet,") as refused:
        beginning_of(world, parse_backfill_request("0", "3", ()))
    assert refused.value.action.endswith("and run `etl run CONF`")


def test_a_dry_run_reports_the_offsets_and_the_number_of_plans() -> None:
    found = preview()
    summary = "Backfill old loads 6 offsets of 2 partitions into clicks, in about 3 plans"
    assert found.summary == summary
    assert found.as_json() == {
        "message": summary,
        "notes": [],
        "name": "old",
        "request": "from 0 until 3 of clicks:0, clicks:1",
        "offsets": 6,
        "estimated_bytes": 600,
        "estimated_plans": 3,
        "loads": [{**partition.place, "from": 0, "until": 3} for partition in LOGS[:2]],
    }
    assert replace(found, plan_records=2).plans == 3
    assert replace(found, plan_records=1).plans == 6, "six offsets, one in each plan"
    assert replace(found, plan_bytes=None).plans == 1
    parts = {LOGS[0]: ((0, 600_000),), LOGS[1]: tuple((at, at + 5) for at in range(0, 80, 10))}
    several = replace(found.beginning.backfill, intervals=parts)
    of_parts = replace(found, beginning=replace(found.beginning, backfill=several), plan_bytes=None)
    assert replace(of_parts, plan_records=100_000).plans == 8, "a plan reads one interval of each"
    assert replace(of_parts, plan_records=50_000).plans == 13


def test_a_preview_of_another_request_under_the_name_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services = SimpleNamespace(backfills=SimpleNamespace(read=lambda _: REQUESTED))
    monkeypatch.setattr(backfill, "open_services", lambda *_, **__: nullcontext(services))
    with pytest.raises(
        SettingsError, match="Backfill old was begun from 0 until 30, and this"
    ) as refused:
        preview_backfill(LATEST, "old", parse_backfill_request("0", "31", ()))
    assert "to continue" in refused.value.action
    assert preview_backfill(LATEST, "old", parse_backfill_request("0", "30", ())) is None


def test_the_text_of_a_request_contains_partitions_and_exclusions() -> None:
    named = ("clicks:10", "clicks:1", "clicks:10")
    found = parse_backfill_request("0", "9", named, only_retained=True, only_missing=True)
    exclusions = "only what is missing and what is retained"
    assert found.asked == f"from 0 until 9 of clicks:1, clicks:10, {exclusions}"
    assert (found.covers(TopicPartition("clicks", 1)), found.covers(LOG)) == (True, False)
    assert parse_backfill_request("0", "9", ()).covers(LOG)
    assert parse_backfill_request("-1h", "9", ()).asked == "from -1h until 9"
    hour = [
        parse_backfill_request(f"2026-01-31T{time}", "9", ()).asked
        for time in ("00:00:00Z", "01:00:00+01:00")
    ]
    assert hour[0] == hour[1], "requests of one meaning are equal"
    for partition in ("clicks:", "clicks:01", "cl/icks"):
        with pytest.raises(SettingsError):
            parse_backfill_request("0", "9", (partition,))


def test_a_backfill_has_a_cap_and_reads_beside_active_members() -> None:
    own = settings_of_backfill(plain_settings(metrics={"path": "/metrics"}), "old")
    assert (own.pipeline, own.metrics_file) == ("clicks", None)
    assert own.group.on_active_members is OnActiveMembers.SKIP
    assert own.limits.max_bytes_per_plan == BACKFILL_PLAN_BYTES
    capped = settings_of_backfill(plain_settings(limits={"max_bytes_per_plan": 5}), "old")
    assert capped.limits.max_bytes_per_plan == 5
    for name in ("", "a/b", "a@b", ".."):
        with pytest.raises(SettingsError, match="is not a name of a backfill"):
            settings_of_backfill(plain_settings(), name)


@pytest.mark.parametrize("offsets", [[3, 3], [5, 3], [-1, 3]])
def test_a_request_with_an_invalid_interval_is_rejected(offsets: list[int]) -> None:
    document = json.loads(zlib.decompress(render(REQUESTED)))
    document["intervals"][0] = [offsets]
    with pytest.raises(LedgersDisagree, match=f"{offsets[0]} to {offsets[1]} of"):
        parse(Backfill, zlib.compress(json.dumps(document).encode()), path="p")


def part(number: int, start: int, until: int, at_ms: int) -> Plan:
    ranges = (OffsetRange(LOG, start, until),)
    return plain_plan(number, loaded_until={LOG: until}, ranges=ranges, created_at_ms=at_ms)


def test_the_pace_is_computed_from_the_last_plans() -> None:
    assert pace_of([]) is None and pace_of([part(1, 0, 4, 1000)]) is None
    assert pace_of([part(1, 0, 4, 1000), part(2, 4, 8, 3000)]) == 2.0
    assert pace_of([part(1, 8, 10, 1000), part(2, 20, 24, 2000)]) == 2.0, (
        "the offsets between two requested intervals are not loaded"
    )


def test_progress_is_of_the_whole_backfill_and_not_of_the_plan_that_is_read() -> None:
    report, doing = new_report(), Doing(Verb.FETCH, ReadSoFar(0, 1, 3, 4, 3, 300))
    assert progress_of_backfill(doing, report) == doing
    report.backfill = BackfillProgress(10, 24)
    found = progress_of_backfill(doing, report).reached
    assert found and (found.offsets, found.offsets_in_all) == (10 + 3, 24)
    assert format_progress(found) == "54%, 3 records, 300 B"
    begun = progress_of_backfill(Doing(Verb.FETCH, ReadSoFar(0, 1, 0, 4, 0, 0)), report).reached
    assert begun and format_progress(begun) == "41%", "no records are those of earlier runs"
    assert progress_of_backfill(Doing(Verb.PLAN), report) == Doing(Verb.PLAN)


CHECKS = "Check its producer. max_record_bytes can be raised if Spark has the memory"
DELETE = (
    "elete the backfill with `etl backfills delete CONF old --reason ...`: it keeps what it loaded"
)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("etl plans supersede CONF 3 --reason ...", f"D{DELETE}"),
        ("the retention", f"the retention. Or d{DELETE}"),
        ("`--only-unloaded` fills", "`--only-unloaded` fills"),
        ("a function; or give the plan up: etl plans supersede CONF", f"a function. Or d{DELETE}"),
        (f"{CHECKS}. Or see `etl plans supersede --help`", f"{CHECKS}. Or d{DELETE}"),
    ],
)
def test_what_stops_a_backfill_names_a_command_that_leads_out(action: str, expected: str) -> None:
    assert action_for_backfill(action, "old") == expected


def test_the_action_for_a_large_record_has_the_form_that_a_backfill_replaces() -> None:
    error = with_pipeline_advice(RecordTooLarge("A record is large", action=CHECKS, offset=7))
    assert error.action == f"{CHECKS}. Or see `etl plans supersede --help`"


def ran_by(did: list[str]) -> Any:
    """Run a backfill by its name only."""

    def ran(settings: Any, name: str, *_: Any, **__: Any) -> Any:
        did.append(name)
        return new_report()

    return ran


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backfills that a command runs; the preview is that of a new one."""
    names = list[str]()
    monkeypatch.setattr(backfill, "preview_backfill", lambda *_: preview())
    monkeypatch.setattr(backfill, "run_backfill", ran_by(names))
    return names


@pytest.mark.parametrize(
    ("answer", "words", "code", "done"),
    [
        ("y\n", (), 0, 1),
        ("n\n", (), 130, 0),
        ("", (), 130, 0),
        ("", ("--yes",), 0, 1),
        ("", ("--dry-run",), 0, 0),
    ],
)
def test_on_a_terminal_it_shows_the_offsets_to_load_and_asks_for_confirmation(
    answer: str,
    words: tuple[str, ...],
    code: int,
    done: int,
    did: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with capsys.disabled():
        monkeypatch.setattr("sys.stdout", out)
        assert main([*NEW, *words]) == code
    assert len(did) == done
    assert ("Backfill old loads 6 offsets" in out.getvalue()) is (words != ("--yes",))


def test_a_new_backfill_needs_yes_where_there_is_no_terminal_and_one_that_was_begun_does_not(
    did: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    result = run_etl(*NEW, "--json")
    assert result.document["message"] == (
        "A new backfill needs a confirmation, and there is no terminal for one. It would do: "
        "Backfill old loads 6 offsets of 2 partitions into clicks, in about 3 plans"
    )
    assert result.code == 2 and not did
    assert run_etl(*NEW, "--yes", "--json").code == run_etl(*NEW[:4]).code == 0
    monkeypatch.setattr(backfill, "preview_backfill", lambda *_: None)
    monkeypatch.setattr(backfill, "show_backfill", lambda *_: {})
    assert run_etl(*NEW).code == 0
    assert did == ["old"] * 3
