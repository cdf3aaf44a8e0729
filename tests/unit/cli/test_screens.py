"""Text for people fits a terminal of 80 columns; piped text is complete."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from etl.cli import screens
from etl.cli.common_options import print_error, print_note
from etl.commands.doctor import Diagnosis
from etl.commands.doctor_machine import Line, Verdict
from etl.commands.plans import Preview
from etl.decide.lag import Headroom
from etl.errors import SettingsError
from etl.model.partitions import Broker, Leader, TopicPartition
from etl.model.plans import Loss, LossReason, OffsetRange, PlanKind
from etl.report.lag import Lags, PartitionLag
from etl.report.report_json import describe_plan
from etl.report.run_progress import Outcome
from tests.builders import plain_plan, plain_snapshot
from tests.reports import new_report

PLANS: list[dict[str, Any]] = [
    {
        **{"number": number, "id": "0123456789abcdef", "kind": "ingest"},
        **{"created_at": "2026-01-31T10:20:30.123+00:00", "ranges": 1200},
        **{"offsets": 1_234_567_890, "unit": "offsets", "rows": rows, "table_version": version},
    }
    for number, rows, version in ((11_999, 1_234_567_890, 12_001), (12_000, None, None))
]
LONG = (
    "the topics of a cluster with a long sentence that describes what the check found and is "
    "longer than one line of a terminal"
)
DIAGNOSIS = Diagnosis(
    (
        Line("ZooKeeper's request limit", Verdict.OK, LONG),
        Line("topics", Verdict.FAILED, LONG, to_do=LONG + " /a/path/that/is/long"),
    )
)


def seen(monkeypatch: pytest.MonkeyPatch, show: Any, value: Any, *, terminal: bool) -> list[str]:
    out = io.StringIO()
    plain: Any = {"no_color": True, "highlight": False, "soft_wrap": True, "color_system": None}
    screen = Console(file=out, width=80, force_terminal=terminal, **plain)
    monkeypatch.setattr(screens, "screen", screen)
    show(value)
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("show", "value"), [(screens.show_plans, PLANS), (screens.show_doctor, DIAGNOSIS)]
)
def test_on_a_terminal_of_80_columns_no_line_is_longer(
    monkeypatch: pytest.MonkeyPatch, show: Any, value: Any
) -> None:
    lines = seen(monkeypatch, show, value, terminal=True)
    assert lines and max(map(len, lines)) <= 80, "\n".join(lines)
    if value is DIAGNOSIS:
        text = " ".join(" ".join(lines).split())
        assert text.count(LONG) == 3 and "/a/path/that/is/long" in text, "nothing is cut"


def test_nothing_that_is_piped_is_cut_or_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = seen(monkeypatch, screens.show_doctor, DIAGNOSIS, terminal=False)
    assert [line.endswith(LONG) for line in lines] == [True, True, False]
    assert lines[2].endswith(f"To do: {LONG} /a/path/that/is/long")
    wide = [{**PLANS[0], "run_key": "x" * 200}]
    [_, line] = seen(monkeypatch, screens.show_plans, wide, terminal=False)
    assert line.endswith("x" * 200) and line.startswith("11999")


def test_logs_with_byte_offsets_are_shown_by_broker_and_partition_and_counted_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown(show: Any, value: Any) -> list[str]:
        return seen(monkeypatch, show, value, terminal=False)

    partition = TopicPartition("clicks", 0, 1)
    ranges = (OffsetRange(partition, 100, 300, Leader(Broker(1, "h", 9092, "jafka"))),)
    plan = plain_plan(1, loaded_until={partition: 300}, ranges=ranges)
    found = Preview(
        "the next run makes plan 1", (plan,), plain_snapshot({partition: (0, 300)}), (1, 1)
    )
    result, names, row = shown(screens.show_preview, found)[1:4]
    assert result.startswith("about ") and result.endswith("1 task")
    assert names.split() == "plan topic partition from until bytes leader".split()
    assert row.split()[:3] == ["1", "clicks", "1-0"]
    partition_offsets = {"log_start": 0, "log_end": 300}
    offsets = {"committed": None, "loaded_until": 100, "lag": 200, "paused": None}
    names, row = shown(screens.show_offsets, [{**partition.place, **partition_offsets, **offsets}])
    assert names.endswith("lag in bytes") and row.split()[:2] == ["clicks", "1-0"]
    lags = Lags(0, (PartitionLag(partition, partition_offsets, 100, 200, 200),))
    names, row, reported = shown(screens.show_lag, lags)
    assert "lag in bytes" in names and row.split()[:2] == ["clicks", "1-0"]
    assert reported == "Total: about 200 B"


def test_the_lag_of_the_table_is_shown_by_partition_then_in_total_then_the_unknown_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
    offsets = {"log_start": 0, "log_end": 300}
    headroom = Headroom(12_000.0, estimated_from="retention.ms")
    unknown = {"lag": "it has no leader"}
    partitions = (
        PartitionLag(first, offsets, 100, 200, 4_000, 1_699_999_875_000, 125.0, headroom),
        PartitionLag(second, {**offsets, "log_end": None}, 7, None, unknown=unknown),
    )
    lags = Lags(1_700_000_000_000, partitions, ("clicks 0: 3 offsets wait",))
    names, row, other, *rest = seen(monkeypatch, screens.show_lag, lags, terminal=False)
    assert names.split("  ")[0] == "topic"
    assert row.split() == "clicks 0 100 300 200 4.0 KB 2:05 min 3:20 h".split()
    assert other.split() == ["clicks", "1", "7", *["-"] * 5]
    assert rest == [
        "Total: 200 records at most, about 4.0 KB; 2:05 min behind; the first may expire in 3:20 h",
        "clicks 0: 3 offsets wait",
        "clicks 1: the lag is unknown: it has no leader",
    ]


def test_a_plan_that_sets_offsets_shows_partitions_offsets_and_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = TopicPartition("clicks", 3)
    plan = plain_plan(
        2,
        kind=PlanKind.SET,
        loaded_until={partition: 110},
        ranges=(),
        reason="bad records",
        lost=(Loss(partition, 100, 110, LossReason.SKIPPED),),
    )
    lines = seen(monkeypatch, screens.show_plan, describe_plan(plan, None), terminal=False)
    assert lines[1:] == [
        "bad records",
        "partition  from  until  records  rows  loaded until  fetched bytes  missing offsets",
        "clicks:3   -     -      -        -              110  -              -",
        "Lost: clicks:3:100-110 (skipped)",
    ]


@pytest.mark.parametrize(
    ("tasks", "words"),
    [((1, 1), "1 task"), ((8, 8), "8 tasks"), ((3, 12), "3 to 12 tasks, by the cluster's cores")],
)
def test_a_preview_counts_in_words(
    monkeypatch: pytest.MonkeyPatch, tasks: tuple[int, int], words: str
) -> None:
    partition = TopicPartition("clicks", 0)
    plan = plain_plan(ranges=(OffsetRange(partition, 0, 1, Leader(Broker(0, "h", 9092))),))
    preview = Preview("next", (plan,), plain_snapshot({partition: (0, 10)}), tasks)
    lines = seen(monkeypatch, screens.show_preview, preview, terminal=False)
    assert lines[1] == f"1 record at most, about 1.0 KB, {words}"


def test_texts_of_others_are_printed_without_markup_and_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "[/x] [incident 12] :smile: \x1b[2Jcleared\nup_to_date: No new records."
    printed = r"[/x] [incident 12] :smile: \x1b[2Jcleared\nup_to_date: No new records."
    report = new_report()
    report.add(Outcome.PAUSED, hostile)
    lines = seen(monkeypatch, screens.show_report, report, terminal=False)
    assert lines == [f"paused: {printed}"]
    shown = (
        (screens.show_summary, hostile.replace("\n", " ")),
        (screens.show_plan, describe_plan(plain_plan(2, reason=hostile), None)),
        (screens.show_plans, [{**PLANS[0], "run_key": hostile}]),
        (screens.show_doctor, Diagnosis((Line("topics", Verdict.OK, hostile),))),
    )
    for show, value in shown:
        lines = seen(monkeypatch, show, value, terminal=False)
        text = "".join(lines)
        assert "[/x] [incident 12] :smile: " in text and text.isprintable(), show
        assert not any(line.startswith("up_to_date") for line in lines)
    print_error(SettingsError(hostile, action=hostile, reason=hostile), wants_json=False)
    print_note(hostile)
    assert "\x1b" not in capsys.readouterr().err
