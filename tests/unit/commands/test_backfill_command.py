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
from etl.commands.backfill import (
    BackfillPreview,
    pace_of,
    parse_backfill_request,
    preview_backfill,
)
from etl.decide.reconcile import LOAD_GIVEN_UP
from etl.errors import DataLoss, LedgersDisagree, NeedsDecision, RecordTooLarge, SettingsError
from etl.ledger.documents import parse, render
from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange
from etl.model.snapshot import (
    Claimed,
    Pause,
    Reservation,
    ReservationState,
    backfill_pipeline,
    is_same_pipeline,
    live_and_name,
)
from etl.reader.options import with_pipeline_advice
from etl.report.run_progress import Doing, ReadSoFar, Verb
from etl.report.run_report import progress_of_backfill
from etl.run.backfill import estimate_backfill
from etl.settings.choices import BACKFILL_PLAN_BYTES, OwnershipMode
from etl.settings.load import settings_of_backfill
from tests.builders import plain_plan, plain_settings, plain_snapshot
from tests.fakes.outside import APP_ID
from tests.fakes.stories import LOGS, new_report, outside_of, run, settings_of
from tests.fakes.world import FakeWorld

LATEST = settings_of(starting_offsets="latest")
LOG = BrokerPartition("clicks", 0)
CLAIM = Reservation(
    "old",
    {LOG: ((0, 10), (20, 30)), BrokerPartition("clicks", 1): ((5, 9),)},
    {LOG: 2},
    "from 0 until 30",
    7,
)


def preview() -> BackfillPreview:
    outside = outside_of(5, 3, 4)
    run(outside, LATEST)
    own = settings_of_backfill(LATEST, "old")
    found = estimate_backfill(
        FakeWorld(outside, LATEST),
        LATEST,
        own,
        parse_backfill_request(
            "0",
            "3",
            (
                "clicks:0",
                "clicks:1",
            ),
        ),
    )
    return BackfillPreview(found, "clicks", 250)


def test_a_dry_run_lists_paused_offsets_and_offsets_that_other_members_read() -> None:
    found = preview()
    paused = replace(
        found.beginning.snapshot, pauses=(Pause("clicks", None, "broken", "kim@h", 5),)
    )
    beginning = replace(found.beginning, read_by_others=2, snapshot=paused)
    read, first, second = replace(found, beginning=beginning).notes
    assert (
        read
        == "2 offsets of these were read by other members of the group; the table gets them, too"
    )
    assert first.startswith(
        "clicks 0 is paused since 1970-01-01T00:00:00.005+00:00 by kim@h: broken."
    ) and second.startswith("clicks 1 ")


def test_a_dry_run_reports_the_offsets_and_the_number_of_plans() -> None:
    found = preview()
    assert (
        found.summary
        == "Backfill old loads 6 offsets of 2 partitions into clicks, in about 3 plans"
    )
    assert found.as_json() == {
        "message": found.summary,
        "notes": [],
        "name": "old",
        "request": "from 0 until 3 of clicks:0, clicks:1",
        "offsets": 6,
        "estimated_bytes": 600,
        "estimated_plans": 3,
        "loads": [
            {"topic": "clicks", "partition": 0, "from": 0, "until": 3},
            {"topic": "clicks", "partition": 1, "from": 0, "until": 3},
        ],
    }


def test_the_number_of_plans_goes_by_both_limits() -> None:
    by_bytes = preview()
    assert replace(by_bytes, plan_records=2).plans == 3
    assert replace(by_bytes, plan_records=1).plans == 6, "six offsets, one in each plan"
    assert replace(by_bytes, plan_bytes=None).plans == 1


@pytest.mark.parametrize(
    ("claim", "bounds", "message", "action"),
    [
        (CLAIM, ("0", "31"), "Backfill old was begun from 0 until 30, and this", "to continue"),
        (
            replace(CLAIM, state=ReservationState.GIVEN_UP, reason="not needed"),
            ("0", "30"),
            "Backfill old was given up: not needed",
            "Use another name to load",
        ),
        (
            replace(CLAIM, state=ReservationState.GIVEN_UP, reason="not needed"),
            ("0", "31"),
            "Backfill old was given up: not needed",
            "Use another name to load",
        ),
    ],
)
def test_a_preview_is_refused_where_the_backfill_would_be(
    claim: Reservation,
    bounds: tuple[str, str],
    message: str,
    action: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from etl.commands import backfill

    store = SimpleNamespace(read_one=lambda _: Claimed(claim, 0))
    live = SimpleNamespace(claims=SimpleNamespace(store=store))
    monkeypatch.setattr(backfill, "open_services", lambda *_, **__: nullcontext(live))
    with pytest.raises(SettingsError, match=message) as refused:
        preview_backfill(LATEST, "old", parse_backfill_request(*bounds, ()))
    assert action in refused.value.action


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("2026-01-31T00:00:00Z", "9"), ("2026-01-31T01:00:00+01:00", "9")),
        (("-1h", "9"), ("-1h", "9")),
    ],
)
def test_bounds_of_the_same_meaning_or_the_same_text_are_equal(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert parse_backfill_request(*one, ()).asked == parse_backfill_request(*other, ()).asked


def test_partitions_are_equal_in_any_order_and_with_repetitions() -> None:
    one, other = (
        parse_backfill_request("0", "9", tuple(f"clicks:{number}" for number in value))
        for value in ("1 0 10".split(), "10 0 1 0".split())
    )
    assert (one, one.asked) == (other, "from 0 until 9 of clicks:0, clicks:1, clicks:10")


def test_the_text_of_a_request_contains_partitions_and_exclusions() -> None:
    found = parse_backfill_request("0", "9", ("clicks:1",), only_retained=True, only_missing=True)
    assert found.asked == "from 0 until 9 of clicks:1, only what is missing and what is retained"
    assert (found.covers(BrokerPartition("clicks", 1)), found.covers(LOG)) == (True, False)
    assert parse_backfill_request("0", "9", ()).covers(LOG)


@pytest.mark.parametrize("partition", ["clicks:", "clicks:01", "cl/icks"])
def test_a_topic_or_partition_of_a_backfill_that_is_none_is_refused(partition: str) -> None:
    with pytest.raises(SettingsError):
        parse_backfill_request("0", "9", (partition,))


def test_a_backfill_has_settings_of_its_own_that_no_conf_can_have() -> None:
    conf = plain_settings(group={"mirror_group": "watched"}, metrics={"path": "/metrics"})
    own = settings_of_backfill(conf, "old")
    assert (own.pipeline, own.group.mirror_group, own.metrics_file, own.group.mode) == (
        "clicks@old",
        None,
        None,
        OwnershipMode.OBSERVE,
    )
    assert own.limits.max_bytes_per_plan == BACKFILL_PLAN_BYTES
    assert (
        settings_of_backfill(
            plain_settings(limits={"max_bytes_per_plan": 5}), "old"
        ).limits.max_bytes_per_plan
        == 5
    )
    for name in ("", "a/b", "a@b", ".."):
        with pytest.raises(SettingsError, match="is not a name of a backfill"):
            settings_of_backfill(conf, name)
    with pytest.raises(SettingsError):
        plain_settings(pipeline=own.pipeline)


def test_a_pipeline_and_its_backfills_are_the_same_pipeline_and_no_other_is() -> None:
    backfill = backfill_pipeline(APP_ID, "old")
    assert live_and_name(backfill) == (APP_ID, "old") and live_and_name(APP_ID) == (APP_ID, None)
    assert (
        is_same_pipeline(APP_ID, backfill)
        and is_same_pipeline(backfill, backfill_pipeline(APP_ID, "new"))
        and is_same_pipeline(backfill, backfill)
    )
    assert not is_same_pipeline(APP_ID + "-2", backfill)


def test_a_claim_comes_back_as_it_was_written() -> None:
    for one in (CLAIM, replace(CLAIM, stretches={}, incarnations={}, reason="no")):
        assert parse(Reservation, render(one), path="p") == one


@pytest.mark.parametrize("offsets", [[3, 3], [5, 3], [-1, 3]])
def test_a_claim_with_a_stretch_that_is_none_is_refused(offsets: list[int]) -> None:
    document = json.loads(zlib.decompress(render(CLAIM)))
    document["stretches"][0] = [offsets]
    with pytest.raises(LedgersDisagree, match=f"{offsets[0]} to {offsets[1]} of"):
        parse(Reservation, zlib.compress(json.dumps(document).encode()), path="p")


def part(number: int, start: int, until: int, at_ms: int) -> Any:
    return plain_plan(
        number,
        positions={LOG: until, BrokerPartition("clicks", 1): 9},
        ranges=(OffsetRange(LOG, start, until),),
        created_at_ms=at_ms,
    )


def test_the_pace_is_computed_from_the_last_plans() -> None:
    assert pace_of(CLAIM, []) is None and pace_of(CLAIM, [part(1, 0, 4, 1000)]) is None
    assert pace_of(CLAIM, [part(1, 0, 4, 1000), part(2, 4, 8, 3000)]) == 2.0
    assert pace_of(CLAIM, [part(1, 8, 10, 1000), part(2, 20, 24, 2000)]) == 2.0, (
        "the offsets between two reserved ranges are not loaded"
    )


def test_progress_is_of_the_whole_backfill_and_not_of_the_plan_that_is_read() -> None:
    report, doing = new_report(), Doing(Verb.FETCH, ReadSoFar(0, 1, 3, 4, 3, 300))
    assert progress_of_backfill(doing, report) == doing
    report.saw(plain_snapshot({}, backfill=CLAIM))
    report.planned(part(2, 20, 24, 1000))
    found = progress_of_backfill(doing, report).reached
    assert found and (found.offsets, found.offsets_in_all) == (4 + 10 + 3, 24)
    assert progress_of_backfill(Doing(Verb.PLAN), report) == Doing(Verb.PLAN)


@pytest.mark.parametrize(
    ("error", "check"),
    [
        (
            NeedsDecision("x", action="etl plans supersede CONF 3 --reason ..."),
            "Delete the backfill with `etl",
        ),
        (
            DataLoss("x", action="the retention"),
            "the retention. Or delete the backfill with",
        ),
        (DataLoss("x", action="`--only-unloaded` fills"), "`--only-unloaded` fills"),
        (
            LedgersDisagree("x", action=f"accept it. {LOAD_GIVEN_UP}"),
            "accept it. Or delete the backfill with",
        ),
        (
            SettingsError("x", action="a function; or give the plan up: etl plans supersede CONF"),
            "a function. Or delete the backfill with",
        ),
        (SettingsError("x", action="the conf"), "the conf"),
    ],
)
def test_what_stops_a_backfill_names_a_command_that_leads_out(error: Any, check: str) -> None:
    from etl.commands.backfill import _suggest_backfill_commands

    with pytest.raises(type(error)), _suggest_backfill_commands("old", lambda: True):
        raise error
    assert error.action.startswith(check)


def test_the_remedy_for_a_large_record_stays_in_the_action_of_a_backfill() -> None:
    from etl.commands.backfill import _suggest_backfill_commands

    checks = (
        "Check its producer. max_record_bytes can be raised if Spark has ten times as much memory "
        "for each core that reads"
    )
    error = with_pipeline_advice(
        RecordTooLarge("A record has more than 9 bytes", action=checks, offset=7)
    )
    assert error.action == f"{checks}. Or see `etl plans supersede --help`"
    with pytest.raises(RecordTooLarge), _suggest_backfill_commands("old", lambda: True):
        raise error
    assert error.action == (
        f"{checks}. Or delete the backfill with `etl backfills delete CONF old --reason ...`: it "
        "keeps what it loaded"
    )


def ran_by(did: list[str]) -> Any:
    """Run a backfill by its name only."""

    def ran(settings: Any, name: str, *_: Any, **__: Any) -> Any:
        did.append(name)
        return new_report()

    return ran


class Terminal(io.StringIO):
    """Standard input and output are a terminal."""

    def isatty(self) -> bool:
        return True


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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from etl.commands import backfill

    did, out = list[str](), Terminal()
    monkeypatch.setattr(backfill, "preview_backfill", lambda *_: preview())
    monkeypatch.setattr(backfill, "run_backfill", ran_by(did))
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with capsys.disabled():
        monkeypatch.setattr("sys.stdout", out)
        assert (
            main(
                [
                    "backfills",
                    "run",
                    "conf/clicks.yaml",
                    "old",
                    "--from",
                    "0",
                    "--until",
                    "3",
                    *words,
                ]
            )
            == code
        )
    assert len(did) == done
    assert ("Backfill old loads 6 offsets" in out.getvalue()) is (words != ("--yes",))


def test_a_new_backfill_needs_yes_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from etl.commands import backfill

    did = list[str]()
    monkeypatch.setattr(backfill, "preview_backfill", lambda *_: preview())
    monkeypatch.setattr(backfill, "run_backfill", ran_by(did))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    new = ["backfills", "run", "conf/clicks.yaml", "old", "--from", "0", "--until", "3"]
    assert main([*new, "--json"]) == 2 and not did
    assert json.loads(capsys.readouterr().out)["message"] == (
        "A new backfill needs a confirmation, and there is no terminal for one. It would do: "
        "Backfill old loads 6 offsets of 2 partitions into clicks, in about 3 plans"
    )
    assert main([*new, "--yes", "--json"]) == 0
    assert main(["backfills", "run", "conf/clicks.yaml", "old"]) == 0
    assert did == ["old", "old"]


def test_a_backfill_that_was_begun_continues_without_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    from etl.commands import backfill

    did = list[str]()
    monkeypatch.setattr(backfill, "preview_backfill", lambda *_: None)
    monkeypatch.setattr(backfill, "show_backfill", lambda *_: {})
    monkeypatch.setattr(backfill, "run_backfill", ran_by(did))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    words = ["backfills", "run", "conf/clicks.yaml", "old", "--from", "0", "--until", "3"]
    assert main(words) == 0
    assert did == ["old"]


def test_a_dry_run_of_a_pipeline_without_a_plan_advises_to_run_it_first() -> None:
    world = FakeWorld(outside_of(5, 3, 4), LATEST)
    with pytest.raises(SettingsError, match="The pipeline has loaded nothing yet,") as refused:
        estimate_backfill(
            world, LATEST, settings_of_backfill(LATEST, "old"), parse_backfill_request("0", "3", ())
        )
    assert refused.value.action == "Run `etl run CONF`; then run this command again"
    assert list(LOGS) and not world.outside.plans
