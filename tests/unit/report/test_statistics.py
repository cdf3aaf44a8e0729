"""Statistics of a run's read for any number of topics and brokers."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from etl.io.process import RequestMeter
from etl.ledger.documents import CODEC
from etl.model.partitions import RebalanceStatistics, TopicPartition
from etl.model.plans import (
    NOT_COUNTED,
    CommitResult,
    OffsetRange,
    RangeResult,
    Requests,
    since,
    together,
)
from etl.report import run_progress
from etl.report.run_progress import HELP, OTHERS, Executed, Statistics
from tests.builders import plain_plan

A, B = Requests(2, 0.5, 10, 100), Requests(1, 0.25, 5, 50)


def test_requests_are_added_by_broker_and_what_came_since_is_the_difference() -> None:
    assert together([{"h:1": A}, {"h:1": B, "h:2": B}]) == {
        "h:1": Requests(3, 0.75, 15, 150),
        "h:2": B,
    }
    assert since({"h:1": B, "h:2": A}, {"h:1": Requests(3, 0.75, 15, 150), "h:2": A, "h:3": B}) == {
        "h:1": A,
        "h:3": B,
    }


def test_a_meter_loses_no_request_of_several_threads() -> None:
    meter = RequestMeter()

    def ask() -> None:
        for _ in range(500):
            meter.add("h:1", B)

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
        RangeResult(rows=7, fetched_bytes=70, requests=(("h:1", A),)),
        RangeResult(rows=3, fetched_bytes=30, requests=(("h:1", B), ("h:2", B))),
        RangeResult(rows=5, fetched_bytes=500),
        topics=2,
    )
    membership = RebalanceStatistics(2, 1.5, heartbeat_age_s=0.5)
    plans = [one, Executed(plain_plan(2)), executed(NOT_COUNTED)]
    reported = Statistics(plans, {"h:1": B}, 3, membership).as_json()
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
    stored = CommitResult(1, "id", 1, "t", (RangeResult(rows=1, requests=(("h:1", A),)),))
    [kept] = CODEC.read(CommitResult, CODEC.write(stored)).results
    assert kept == RangeResult(rows=1)


def test_beyond_the_bound_all_others_are_one_and_sums_stay_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_progress, "MOST", 2)
    requests = [((f"h:{n}", replace(A, seconds=float(n))),) for n in range(5)]
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
    results = RangeResult(requests=(("h:1", A),))
    membership = RebalanceStatistics(1, 1.0, heartbeat_age_s=1.0)
    full = Statistics([executed(results)], {"h:2": B}, 1, membership)
    names, without = (
        {name for name, _, _ in one.samples()} for one in (full, replace(full, membership=None))
    )
    assert names == HELP.keys()
    assert {name for name in HELP if "rebalance" in name or "heartbeat" in name} <= names - without
