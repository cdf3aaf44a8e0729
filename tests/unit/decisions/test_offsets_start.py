"""The start of a partition that was never read."""

from __future__ import annotations

from typing import Any

import pytest

from etl.decide.offsets import timestamps_to_look_up
from etl.ledger.plan_document import with_id
from etl.model.partitions import NOTHING_COMMITTED, Committed, PartitionOffsets, TopicPartition
from etl.model.plans import Plan
from etl.report.report_json import describe_plan
from etl.report.run_progress import Outcome
from etl.settings.choices import OnOwned
from etl.settings.sections import Settings
from tests.builders import pending_offsets_of, pending_starts_of, with_facts, with_keys
from tests.fakes.fake_log import FakeLog, offset_of
from tests.fakes.outside import Outside
from tests.fakes.planning import NOW_MS, OTHER, A, B, onward, planned, snapshot_of
from tests.fakes.planning import settings_of as plan_settings
from tests.fakes.stories import (
    LOGS,
    crash_at,
    outcomes,
    outside_of,
    reject_unfinished,
    run,
    settings_of,
)
from tests.fakes.world import Crash, When

NOON_MS = 1_769_860_800_000
AT_NOON = "2026-01-31T12:00:00+00:00"
FIRST_RUN_MS = 1_700_000_000_000
"""The fake world's clock at a first run."""


def without_a_leader(*, later: dict[int, int], **source: Any) -> tuple[Outside, Settings]:
    """Partition 0 has 6 records and no leader."""
    outside = outside_of(6, 3, 0)
    outside.logs[LOGS[0]].has_leader = False
    outside.logs[LOGS[0]].later = later
    return outside, settings_of(on_no_leader="skip", **source)


def its_rows(outside: Outside, partition: TopicPartition = LOGS[0]) -> list[int]:
    return sorted(offset_of(place) for found, place in outside.rows() if found == partition)


def leads_again(
    outside: Outside, partition: TopicPartition = LOGS[0], *, later: tuple[int, ...] = ()
) -> None:
    """The partition has a leader again, and more records, at those milliseconds."""
    found = outside.logs[partition]
    found.has_leader = True
    found.later |= dict(enumerate(later, start=found.end))
    found.end += len(later)


def test_the_latest_record_of_a_partition_without_a_leader_is_that_of_the_first_run() -> None:
    outside, settings = without_a_leader(later={5: FIRST_RUN_MS - 1}, starting_offsets="latest")
    run(outside, settings)
    leads_again(outside, later=(FIRST_RUN_MS, FIRST_RUN_MS + 5))
    assert outcomes(run(outside, settings)) == [Outcome.INGESTED]
    assert its_rows(outside) == [6, 7]
    leads_again(outside, later=(0,))
    run(outside, settings)
    assert its_rows(outside) == [6, 7, 8], "its start is decided by then"


def after_a_transaction(later: dict[int, int], **source: Any) -> tuple[Outside, Settings]:
    """Partition 0 has 6 records, the last 4 after the start of an open transaction."""
    outside = outside_of(6, 3, 0)
    outside.logs[LOGS[0]].held_back, outside.logs[LOGS[0]].later = 4, later
    return outside, settings_of(**source)


@pytest.mark.parametrize(
    ("later", "rows"),
    [({4: NOON_MS, 5: NOON_MS - 1}, [4, 5]), ({5: NOON_MS - 1}, []), ({2: NOON_MS}, [2, 3, 4, 5])],
)
def test_a_start_by_time_after_an_open_transaction_waits_and_loads_no_older_record(
    later: dict[int, int], rows: list[int]
) -> None:
    outside, settings = after_a_transaction(later, starting_offsets=AT_NOON)
    for _ in range(2):
        run(outside, settings)
        assert its_rows(outside) == []
    outside.logs[LOGS[0]].held_back = 0
    run(outside, settings_of(starting_offsets="earliest"))
    assert its_rows(outside) == rows, "the conf of the first run counts"


def test_a_start_at_the_latest_offset_is_the_readable_end() -> None:
    outside, settings = after_a_transaction({}, starting_offsets="latest")
    run(outside, settings)
    outside.logs[LOGS[0]].held_back = 0
    run(outside, settings)
    assert its_rows(outside) == [2, 3, 4, 5]


# -- a topic of which the first run could read no partition

UNREAD = TopicPartition("clicks-2", 0)
UNREAD_SOURCE: dict[str, Any] = {"new_topics_starting_offsets": "latest", "on_no_leader": "skip"}


def skipping_owners(**source: Any) -> Settings:
    return with_keys(settings_of(**{**UNREAD_SOURCE, **source}), group={"on_owned": OnOwned.SKIP})


def with_an_unread_topic(why: str, *ends: int) -> Outside:
    """Another topic with four older records, which this run cannot read."""
    outside = outside_of(*ends)
    outside.logs[UNREAD] = FakeLog(4, has_leader=why != "no_leader")
    outside.owners = {UNREAD: "group_host-1-0"} if why == "owned" else {}
    return outside


def can_be_read(outside: Outside) -> None:
    outside.logs[UNREAD].has_leader, outside.owners = True, {}


@pytest.mark.parametrize("ends", [(5, 3, 0), ()])
@pytest.mark.parametrize("why", ["no_leader", "owned"])
def test_a_topic_of_which_the_first_run_could_read_nothing_is_no_new_topic_later(
    why: str, ends: tuple[int, ...]
) -> None:
    outside, settings = with_an_unread_topic(why, *ends), skipping_owners()
    run(outside, settings)
    can_be_read(outside)
    run(outside, skipping_owners(starting_offsets="latest"))
    reject_unfinished(outside)


def test_the_start_of_an_unreadable_topic_survives_a_superseding_plan() -> None:
    outside = with_an_unread_topic("no_leader", 5)
    settings = skipping_owners(on_data_loss="skip", starting_offsets="earliest")
    with pytest.raises(Crash):
        run(outside, settings, at=crash_at("store plan", When.AFTER))
    outside.logs[LOGS[0]].log_start = 2
    can_be_read(outside)
    report = run(outside, skipping_owners(on_data_loss="skip", starting_offsets="latest"))
    assert Outcome.PLAN_SUPERSEDED in outcomes(report)
    assert its_rows(outside, UNREAD) == [0, 1, 2, 3]


def test_a_decided_start_survives_the_loss_of_the_ledger() -> None:
    outside, settings = without_a_leader(later={5: FIRST_RUN_MS}, starting_offsets="latest")
    run(outside, settings)
    outside.uid, outside.plans, outside.applied, outside.offsets = None, {}, {}, {}
    leads_again(outside)
    run(outside, settings)
    assert its_rows(outside) == [5]


# -- the pure part

SKIP = plan_settings(on_no_leader="skip", starting_offsets="latest")


def kept_after_a_first_run(**source: Any) -> Plan:
    return with_id(
        planned(
            snapshot_of({B: (0, 5)}, leaderless=frozenset({A})),
            settings=plan_settings(on_no_leader="skip", **source),
        )
    )


@pytest.mark.parametrize(
    ("source", "moment", "shown"),
    [({"starting_offsets": "latest"}, NOW_MS, "2023-11-14T22:13:20.000+00:00"), ({}, None, None)],
    ids=["a moment", "the first record"],
)
def test_a_decided_start_is_kept_in_the_plan_and_shown(
    source: dict[str, Any], moment: int | None, shown: str | None
) -> None:
    plan = kept_after_a_first_run(**source)
    assert pending_starts_of(plan) == {A: moment}
    assert describe_plan(plan, None)["pending_starts"] == [
        {"topic": "clicks", "partition": 0, "first_record_at": shown}
    ]


def test_an_unread_partition_with_a_leader_starts_at_its_former_end_for_any_timestamps() -> None:
    left = with_facts(
        snapshot_of({B: (0, 5)}),
        owners={A: "consumer-1"},
        extents_of_owned={A: PartitionOffsets(0, 7)},
    )
    first = with_id(planned(left, settings=SKIP))
    assert (pending_starts_of(first), pending_offsets_of(first)) == ({A: NOW_MS}, {A: 7})
    assert describe_plan(first, None)["pending_starts"][0]["first_offset"] == 7
    assert timestamps_to_look_up([A], first, SKIP, {}) == {}

    state = onward(
        {B: 5}, pending_starts=pending_starts_of(first), pending_offsets=pending_offsets_of(first)
    )
    grown = with_facts(
        left,
        extents_of_owned={A: PartitionOffsets(0, 9)},
        extents=snapshot_of({B: (0, 6)}).readable,
    )
    assert pending_offsets_of(planned(grown, state, SKIP)) == {A: 7}, "decided once"
    read = planned(snapshot_of({A: (0, 9), B: (0, 5)}), state, SKIP)
    assert [(r.partition, r.from_offset, r.until_offset) for r in read.ranges] == [(A, 7, 9)]
    assert (pending_starts_of(read), pending_offsets_of(read)) == ({}, {})
    truncated = planned(snapshot_of({A: (0, 4), B: (0, 6)}), state, SKIP)
    assert truncated.loaded_until[A] == 4


def test_offsets_at_a_time_are_requested_only_for_logs_that_start_at_one() -> None:
    first, partitions = plan_settings(starting_offsets=AT_NOON), [A, B, OTHER]
    assert timestamps_to_look_up([A, OTHER], None, first, {}) == {A: NOON_MS, OTHER: NOON_MS}
    assert timestamps_to_look_up([A, OTHER], None, SKIP, {}) == {}
    at_the_moment = kept_after_a_first_run(starting_offsets="latest")
    assert timestamps_to_look_up(partitions, at_the_moment, first, {}) == {A: NOW_MS}
    assert timestamps_to_look_up(partitions, kept_after_a_first_run(), first, {}) == {}


def test_for_a_log_with_a_committed_offset_no_offset_at_a_time_is_requested() -> None:
    last = kept_after_a_first_run(starting_offsets="latest")
    committed = {A: Committed(3), B: NOTHING_COMMITTED}
    assert timestamps_to_look_up(
        [A, B], None, plan_settings(starting_offsets=AT_NOON), committed
    ) == {B: NOON_MS}
    assert timestamps_to_look_up([A, B], last, SKIP, committed) == {}
    assert timestamps_to_look_up([A, B], last, SKIP, {A: NOTHING_COMMITTED}) == {A: NOW_MS}


def test_a_start_without_a_requested_offset_waits_for_a_run_that_requests_it() -> None:
    last = kept_after_a_first_run(starting_offsets="latest")
    state = onward({B: 5}, pending_starts=pending_starts_of(last))
    plan = planned(snapshot_of({A: (0, 9), B: (0, 7)}), state, SKIP)
    assert (plan.loaded_until, pending_starts_of(plan)) == ({B: 7}, {A: NOW_MS})
    plan = planned(snapshot_of({A: (0, 9), B: (0, 7)}, starts={A: 4}), state, SKIP)
    assert (plan.loaded_until, pending_starts_of(plan)) == ({A: 9, B: 7}, {})
