"""The report of a run: JSON at any moment, and a correct lag before and after."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etl.errors import EtlError, Stopped, TableUnreachable
from etl.io.process import RequestMeter
from etl.ledger.documents import CODEC
from etl.model.partitions import (
    Broker,
    Committed,
    Leader,
    OpenTransaction,
    PartitionOffsets,
    RebalanceStatistics,
    TopicPartition,
)
from etl.model.plans import (
    NOT_COUNTED,
    CommitResult,
    Loss,
    LossReason,
    OffsetRange,
    Plan,
    PlanKind,
    RangeResult,
    Requests,
    since,
    together,
)
from etl.model.snapshot import FirstRun, Ledger, PipelineState, Snapshot, UpToDate
from etl.report import run_progress
from etl.report.describe import describe_open, describe_uncounted, describe_who_skipped, format_time
from etl.report.metrics import metrics_of
from etl.report.page import page_of
from etl.report.report_json import describe_plan, report_as_json
from etl.report.run_history import outdated
from etl.report.run_progress import HELP, OTHERS, Executed, Outcome, Process, Statistics, Verb
from etl.report.run_report import Report
from tests.builders import changed, plain_plan, plain_settings, plain_snapshot, with_facts

SETTINGS = plain_settings()
A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def plan_of(
    number: int, positions: dict[TopicPartition, int], *ranges: OffsetRange, **changes: Any
) -> Plan:
    return replace(
        plain_plan(number, ranges=ranges, loaded_until=positions, id=f"plan-{number}"), **changes
    )


FIRST = plan_of(
    1, {A: 10, B: 6}, OffsetRange(A, 2, 10, Leader(Broker(0, "h", 9092), 4)), OffsetRange(B, 0, 6)
)
SECOND = plan_of(2, {A: 14, B: 6}, OffsetRange(A, 10, 14))
APPLIED = CommitResult(
    1,
    "plan-1",
    0,
    "t",
    (RangeResult(rows=7, fetched_bytes=90, gaps=((3, 4),), missing_offsets=1), RangeResult(rows=6)),
)


def snapshot_of(
    ends: tuple[int, int],
    committed: dict[TopicPartition, int] | None = None,
    newest: Plan | None = None,
) -> Snapshot:
    return plain_snapshot(
        {B: (0, ends[1]), A: (2, ends[0])},
        committed={partition: Committed(o, 0) for partition, o in (committed or {}).items()},
        ledger=Ledger("u", newest),
    )


def new_report() -> Report:
    return Report("run-1", "clicks", "g", "warehouse/clicks", 1_700_000_000_000)


def document_of(report: Report) -> dict[str, Any]:
    return json.loads(json.dumps(report_as_json(report), allow_nan=False))  # type: ignore[no-any-return]


def looked(report: Report, snapshot: Snapshot, state: PipelineState = FirstRun()) -> None:
    """The report's state after `ingest` has observed."""
    report.saw(snapshot)
    report.stands(state, SETTINGS)


def lag_of(report: Report) -> list[tuple[Any, Any]]:
    return [(partition["before"], partition["after"]) for partition in document_of(report)["lag"]]


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [
        (None, "done", 0),
        (TableUnreachable("it cannot be written"), "failed", 7),
        (Stopped("stopped"), "failed", 130),
    ],
)
def test_a_finished_run_has_its_outcome_and_its_time(
    error: EtlError | None, state: str, code: int
) -> None:
    report = new_report()
    if error:
        report.failed(error)
    report.finished(1_700_000_001_500)
    document = document_of(report)
    assert (document["state"], document["exit_code"]) == (state, code)
    assert document["started_at"] == "2023-11-14T22:13:20.000+00:00"
    assert document["finished_at"] == "2023-11-14T22:13:21.500+00:00"


@pytest.mark.parametrize(("sizes", "reported"), [((90, 10), 100), ((90, None), None)])
def test_bytes_are_those_of_all_ranges_or_unknown(
    sizes: tuple[int | None, ...], reported: int | None
) -> None:
    report = new_report()
    report.planned(FIRST)
    results = tuple(RangeResult(rows=1, fetched_bytes=size) for size in sizes)
    report.applied(replace(APPLIED, results=results))
    assert document_of(report)["bytes"] == reported


def test_records_per_second_are_those_of_the_whole_run() -> None:
    report = new_report()
    report.watch.reckon(Verb.START_SPARK, 4.5)
    report.watch.reckon(Verb.FETCH, 2.0)
    report.planned(FIRST)
    report.applied(APPLIED)
    report.finished(1_700_000_007_000)
    document = document_of(report)
    assert (document["total_seconds"], document["records_per_second"]) == (6.5, 2)


def test_each_open_transaction_of_a_topic_has_its_own_partitions_and_its_reported_start() -> None:
    held_back = with_facts(
        snapshot_of((10, 6)),
        extents={A: PartitionOffsets(2, 10, 70), B: PartitionOffsets(0, 6, 7)},
    )
    orders = OpenTransaction(7, 10, "orders", 1_700_000_000_000)
    snapshot = with_facts(held_back, open_transactions={A: orders, B: OpenTransaction(8, 6)})
    wait = "below the high watermark wait"
    assert list(describe_open(snapshot)) == [
        f"clicks 0: 60 offsets {wait} for the open transaction orders of producer 7, open since "
        "2023-11-14T22:13:20.000+00:00",
        f"clicks 1: 1 offset {wait}s for the open transaction of producer 8",
    ]
    both = with_facts(held_back, open_transactions=dict.fromkeys((A, B), OpenTransaction(8, 6)))
    of_both = f"clicks 0, 1: 61 offsets {wait} for"
    assert list(describe_open(both)) == [f"{of_both} the open transaction of producer 8"]
    assert list(describe_open(held_back)) == [f"{of_both} an open transaction"]
    assert list(describe_open(snapshot_of((10, 6)))) == []
    report = new_report()
    report.saw(snapshot)
    first = document_of(report)["lag"][0]
    names = ("log_end", "high_watermark", "held_back", "held_back_by")
    assert [first[name] for name in names] == [10, 70, 60, "orders"]


def test_a_first_run_goes_from_the_whole_log_to_no_lag() -> None:
    report = new_report()
    report.saw(snapshot_of((10, 6)))
    assert lag_of(report) == [(None, None)] * 2, "it does not know yet where it stands"
    report.stands(FirstRun(), SETTINGS)
    report.planned(FIRST)
    assert lag_of(report) == [(8, 8), (6, 6)]
    report.applied(APPLIED)
    report.committed(FIRST)
    assert lag_of(report) == [(8, 0), (6, 0)]
    document = document_of(report)
    counts = [document[name] for name in ("records_read", "offsets_committed", "table_version")]
    assert counts == [13, 2, 0]
    assert document["outcomes"] == [
        {"outcome": "ingested", "message": "Plan 1: 13 rows written, table version 0"}
    ]


@pytest.mark.parametrize(
    ("applied", "rows", "message"),
    [
        (
            replace(
                APPLIED, results=(APPLIED.results[0].without_left_out(3), *APPLIED.results[1:])
            ),
            10,
            "10 rows written, table version 0; 13 records read: the transform left out 3",
        ),
        (
            replace(
                APPLIED,
                results=tuple(replace(r, rows=None, records=r.rows) for r in APPLIED.results),
                written=9,
            ),
            9,
            "9 rows written, table version 0; 13 records read: the transform left out 4, and the "
            "files do not show at which offsets",
        ),
    ],
    ids=["batches", "data frames"],
)
def test_records_read_and_rows_written_are_two_figures(
    applied: CommitResult, rows: int, message: str
) -> None:
    report = new_report()
    report.planned(FIRST)
    report.applied(applied)
    document = document_of(report)
    assert (document["records_read"], document["rows_written"]) == (13, rows)
    assert document["outcomes"][0]["message"] == f"Plan 1: {message}"
    assert (document["plan"]["records_read"], document["plan"]["rows_written"]) == (13, rows)
    report.finished(1)
    samples = metrics_of(report, now_ms=1, per_partition=False, last_success_s=None)
    for name, value in (("run_records", 13), ("run_rows", rows)):
        assert re.search(rf"^offset_range_etl_{name}{{.*}} {value}(\.0)?$", samples, re.MULTILINE)
    assert f"13 records read and {rows} rows written" in page_of(document_of(report))


LATER = UpToDate(FIRST, FIRST.loaded_until)


def test_a_run_that_failed_before_its_append_keeps_its_lag_and_reports_the_error() -> None:
    report = new_report()
    looked(report, snapshot_of((14, 6), {A: 10, B: 6}, FIRST), LATER)
    report.planned(SECOND)
    report.failed(TableUnreachable("the table cannot be written", path=Path("/t")))
    report.finished(1_700_000_001_000)
    document = document_of(report)
    assert lag_of(report) == [(4, 4), (0, 0)]
    error = document["error"]
    assert (document["exit_code"], error["error"]) == (7, "TableUnreachable")
    assert error["where"] == {"path": "/t"}
    assert document["outcomes"][-1]["outcome"] == "failed"


def losing(*lost: Loss, number: int = 1) -> Plan:
    return replace(FIRST, number=number, losses=replace(FIRST.losses, lost=lost))


@pytest.mark.parametrize(
    ("whys", "who"),
    [
        ([LossReason.EXPIRED], "source.on_data_loss"),
        ([LossReason.MISSING], "source.on_data_loss"),
        ([LossReason.MOVED], "group.on_offset_changed"),
        ([LossReason.SKIPPED], "an operator"),
        ([LossReason.MISSING, LossReason.MOVED], "source.on_data_loss and group.on_offset_changed"),
    ],
)
def test_losses_are_reported_with_their_reason(whys: list[LossReason], who: str) -> None:
    report = new_report()
    report.planned(losing(*(Loss(A, i, i + 1, why) for i, why in enumerate(whys))))
    assert describe_who_skipped(report.why_lost)[0] == who


def test_the_plan_with_the_reason_of_skipped_records_is_named() -> None:
    report = new_report()
    skipped = Loss(A, 1, 3, LossReason.SKIPPED)
    report.planned(losing(skipped, number=2))
    report.planned(losing(Loss(A, 4, 5, LossReason.EXPIRED), number=3))
    assert describe_who_skipped(report.why_lost)[1] == (
        "Check the topic's retention. Check the reason with `etl plans show CONF 2`"
    )
    report.planned(losing(skipped, number=4))
    assert describe_who_skipped(report.why_lost)[1].endswith(
        "Check the reason with `etl plans show CONF 2` and `etl plans show CONF 4`"
    )


def test_skipped_records_are_reported_per_log() -> None:
    report = new_report()
    assert not report.lost_records
    report.planned(losing(Loss(A, 0, 2_000, LossReason.EXPIRED)))
    assert report.lost_records
    assert report.outcomes == [
        (Outcome.RECORDS_LOST, "clicks 0: 2,000 offsets (0 to 2000) lost: expired")
    ]
    [loss] = document_of(report)["plan"]["losses"]
    assert loss == {**A.place, "from": 0, "until": 2000, "reason": "expired", "incarnation": 0}


def test_a_plan_without_ranges_is_described_as_keeping_the_start() -> None:
    report = new_report()
    report.planned(plan_of(1, {A: 10, B: 6}, kind=PlanKind.START))
    report.applied(CommitResult(1, "plan-1", 0, "t", ()))
    assert report.outcomes == [
        (Outcome.OFFSETS_STORED, "Plan 1 has no rows, only the start offsets of 2 partitions")
    ]
    assert document_of(report)["records_read"] == 0


def test_a_plan_in_place_of_one_that_was_given_up_is_described_as_that() -> None:
    report = new_report()
    given_up = plan_of(1, {A: 10, B: 6}, kind=PlanKind.START)
    report.planned(changed(given_up, supersedes="plan-0"))
    report.applied(CommitResult(1, "plan-1", 0, "t", ()))
    [(_, sentence)] = report.outcomes
    assert sentence == "Plan 1 reads nothing: it takes the number of a plan that was given up"


def test_only_offsets_that_moved_are_counted_as_committed() -> None:
    report = new_report()
    report.committed(changed(FIRST, expected_commits={A: Committed(10, 3), B: Committed(1, 0)}))
    assert report.offsets_committed == 1


def test_a_result_with_open_questions_reports_them() -> None:
    report = new_report()
    report.planned(FIRST)
    uncounted = replace(APPLIED, results=(NOT_COUNTED,) * 2, uncounted="the table has no column")
    report.applied(uncounted)
    assert report.outcomes[-1][1] == (
        "Plan 1: rows written, table version 0; the number of rows is unknown (the table has no "
        "column)"
    )
    assert report.records == 0
    document = json.loads(json.dumps(describe_plan(FIRST, uncounted)))
    first = document["ranges"][0]
    assert document["uncounted"] == "the table has no column"
    assert (first["rows"], first["missing_offsets"]) == (None, None)
    doubtful = RangeResult(7, None, missing_offsets=1, behind_transform=True)
    assert describe_uncounted(replace(APPLIED, results=(doubtful, RangeResult(2, None)))) == (
        "; 1 offsets have no row, and whether the transform left them out is unknown: `etl verify` "
        "cannot prove them"
    )
    assert describe_uncounted(APPLIED) == ""


def test_a_plan_is_described_with_its_results_for_people_and_programs() -> None:
    document = json.loads(json.dumps(describe_plan(FIRST, APPLIED)))
    assert document["ranges"][0] == {
        **A.place,
        **{"from": 2, "until": 10, "leader": "0 at h:9092", "leader_epoch": 4},
        **{
            "records": 7,
            "rows": 7,
            "fetched_bytes": 90,
            "control_records": 0,
            "aborted_records": 0,
        },
        **{"missing_offsets": 1, "gaps": [[3, 4]], "gaps_complete": True},
        **{"leader_epochs": [], "behind_transform": False},
    }
    assert document["ranges"][1]["leader"] is None
    unseen = {"seen_offset": None, "seen_version": None}
    first, second = ({**A.place, "loaded_until": 10}, {**B.place, "loaded_until": 6})
    assert document["partitions"] == [{**first, **unseen}, {**second, **unseen}]
    assert "rows" not in describe_plan(FIRST, None)["ranges"][0]


def test_the_newest_reports_of_a_pipeline_stay_and_older_ones_go_with_their_logs() -> None:
    runs = [f"clicks-2026010{day}T000000-00000{day}" for day in range(1, 6)]
    of_others = ["other-20250101T000000-000000.json", "clicks-2-20250101T000000-000000.json"]
    of_others += ["clicks-notes.json", "clicks.yaml"]
    of_jobs = [f"{runs[0]}-{job}.spark.log" for job in ("verify", "maintain", "into")]
    of_runs = [f"{run}{end}" for run in runs for end in (".json", ".spark.log")]
    names = of_runs + of_jobs + of_others
    assert outdated(names, "clicks", 3) == sorted(of_runs[:4] + of_jobs)
    assert outdated(names, "clicks", 5) == []
    assert outdated([f"{runs[0]}.spark.log"], "clicks", 1) == []


@pytest.mark.parametrize(
    "other", [replace(APPLIED, plan_id="plan-0"), replace(APPLIED, results=APPLIED.results[:1])]
)
def test_the_result_of_another_plan_does_not_apply_to_this_one(other: CommitResult) -> None:
    assert describe_plan(FIRST, other) == describe_plan(FIRST, None)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000+00:00"),
        (-1, "1969-12-31T23:59:59.999+00:00"),
        (None, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_every_time_has_one_format_and_one_outside_the_calendar_has_none(
    ms: int | None, text: str | None
) -> None:
    assert format_time(ms) == text


def test_a_run_that_was_killed_leaves_a_report_that_names_its_process_and_claims_nothing() -> None:
    report = new_report()
    versions = {"pyspark": None, "python": "3.11.2"}
    report.process = Process("host-1", 7, "/conf/clicks.yaml", versions)
    document = document_of(report)
    process = [document[name] for name in ("host", "pid", "conf", "versions")]
    assert process == ["host-1", 7, "/conf/clicks.yaml", versions]
    unknown = ("exit_code", "error", "finished_at", "records_per_second", "table_version", "plan")
    assert (document["run_id"], document["state"]) == ("run-1", "running")
    assert [document[name] for name in unknown] == [None] * 6
    assert (document["outcomes"], document["lag"]) == ([], [])
    assert list(document["seconds"]) == [verb.value for verb in Verb]


OF_ONE, OF_ANOTHER = Requests(2, 0.5, 10, 100), Requests(1, 0.25, 5, 50)


def test_requests_are_added_by_broker_and_what_came_since_is_the_difference() -> None:
    assert together([{"h:1": OF_ONE}, {"h:1": OF_ANOTHER, "h:2": OF_ANOTHER}]) == {
        "h:1": Requests(3, 0.75, 15, 150),
        "h:2": OF_ANOTHER,
    }
    assert since(
        {"h:1": OF_ANOTHER, "h:2": OF_ONE},
        {"h:1": Requests(3, 0.75, 15, 150), "h:2": OF_ONE, "h:3": OF_ANOTHER},
    ) == {
        "h:1": OF_ONE,
        "h:3": OF_ANOTHER,
    }


def test_a_meter_loses_no_request_of_several_threads() -> None:
    meter = RequestMeter()

    def ask() -> None:
        for _ in range(500):
            meter.add("h:1", OF_ANOTHER)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert meter.counts() == {"h:1": Requests(2000, 500.0, 10_000, 100_000)}


def executed(*results: RangeResult, topics: int = 1) -> Executed:
    ranges = tuple(
        OffsetRange(TopicPartition(f"t{i % topics}", i), 0, 10) for i in range(len(results))
    )
    plan = plain_plan(ranges=ranges)
    return Executed(plan, CommitResult(1, plan.id, 1, "t", results))


def test_messages_and_bytes_are_summed_by_topic_and_requests_by_broker_and_sender() -> None:
    one = executed(
        RangeResult(rows=7, fetched_bytes=70, requests=(("h:1", OF_ONE),)),
        RangeResult(rows=3, fetched_bytes=30, requests=(("h:1", OF_ANOTHER), ("h:2", OF_ANOTHER))),
        RangeResult(rows=5, fetched_bytes=500),
        topics=2,
    )
    membership = RebalanceStatistics(2, 1.5, heartbeat_age_s=0.5)
    plans = [one, Executed(plain_plan(2)), executed(NOT_COUNTED)]
    reported = Statistics(plans, {"h:1": OF_ANOTHER}, 3, membership).as_json()
    assert reported["topics"] == [
        {"topic": "t0", "messages": 12, "rows": None, "bytes": 570},
        {"topic": "t1", "messages": 3, "rows": 3, "bytes": 30},
    ], "the rows of one range are not known"
    assert [tuple(broker.values()) for broker in reported["brokers"]] == [
        ("driver", "h:1", 1, 0.25, 5, 50),
        ("tasks", "h:1", 3, 0.75, 15, 150),
        ("tasks", "h:2", 1, 0.25, 5, 50),
    ]
    assert reported["commits"] == {"table": 2, "offsets": 3}
    assert reported["membership"]["heartbeat_age_s"] == 0.5
    assert Statistics([executed(NOT_COUNTED)]).as_json()["membership"] is None


def test_requests_of_a_range_are_not_stored() -> None:
    stored = CommitResult(1, "id", 1, "t", (RangeResult(rows=1, requests=(("h:1", OF_ONE),)),))
    [kept] = CODEC.read(CommitResult, CODEC.write(stored)).results
    assert kept == RangeResult(rows=1)


def test_beyond_the_bound_all_others_are_one_and_sums_stay_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_progress, "MOST", 2)
    requests = [((f"h:{n}", replace(OF_ONE, seconds=float(n))),) for n in range(5)]
    results = [RangeResult(n, 10 * n, requests=requests[n]) for n in range(5)]
    found = Statistics([executed(*results, topics=5)])
    assert found.topics == {
        "t4": {"messages": 4, "rows": 4, "bytes": 40},
        "t3": {"messages": 3, "rows": 3, "bytes": 30},
        OTHERS: {"messages": 3, "rows": 3, "bytes": 30},
    }
    assert list(found.brokers["tasks"]) == ["h:4", "h:3", OTHERS]
    assert found.brokers["tasks"][OTHERS]["answers"] == 6


def test_samples_of_a_membership_are_there_where_the_run_is_a_member() -> None:
    results = RangeResult(requests=(("h:1", OF_ONE),))
    membership = RebalanceStatistics(1, 1.0, heartbeat_age_s=1.0)
    full = Statistics([executed(results)], {"h:2": OF_ANOTHER}, 1, membership)
    names, without = (
        {name for name, _, _ in one.samples()} for one in (full, replace(full, membership=None))
    )
    assert names == HELP.keys()
    assert {name for name in HELP if "rebalance" in name or "heartbeat" in name} <= names - without
