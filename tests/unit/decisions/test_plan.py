"""Which offsets the next plan holds: a table for each decision, laws for all of them together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.decide.plan import may_be_transformed, shape_of_rows
from etl.decide.reconcile import reject_missing_topics, reject_null_partition_value
from etl.decide.tasks import ASSUMED_BYTES_PER_OFFSET
from etl.errors import (
    BadOffset,
    BrokerUnreachable,
    DataLoss,
    NeedsDecision,
    NotYetReadable,
    PartitionTruncated,
    SettingsError,
    TopicMissing,
)
from etl.ledger.plan_document import with_id
from etl.model.partitions import Committed, Leader, PartitionOffsets, TopicPartition
from etl.model.plans import Loss, LossReason, PlanKind, PlanOrigin
from etl.model.snapshot import FirstRun, Ledger, Snapshot, Table, UpToDate
from etl.settings.sections import Settings
from tests.builders import log_starts_of, with_facts, with_keys
from tests.fakes.planning import (
    BROKER,
    CAPS,
    COSTS,
    EXTENTS,
    NOW_MS,
    OTHER,
    SETTINGS,
    A,
    B,
    C,
    last_plan,
    next_plan,
    offsets_of,
    onward,
    planned,
    settings_of,
    snapshot_of,
)

# -- where a log starts


def test_the_first_plan_reads_from_the_first_record_and_records_every_observation() -> None:
    extents, table = {A: (3, 10), B: (0, 5)}, Table("t1", 0, None)
    plan = planned(snapshot_of(extents, topic_ids={"clicks": "id-1"}, table=table))
    assert plan.origin == PlanOrigin(pipeline_id="u", created_at_ms=NOW_MS)
    assert (plan.number, plan.kind, plan.cluster.name) == (1, PlanKind.INGEST, "c")
    assert offsets_of(plan) == {A: [(3, 10)], B: [(0, 5)]}
    assert plan.ranges[0].leader == Leader(BROKER, 4)
    assert plan.loaded_until == {A: 10, B: 5}
    assert plan.expected_commits == {A: Committed(), B: Committed()}
    assert (plan.table.id, plan.topic_ids, plan.losses.lost) == ("t1", {"clicks": "id-1"}, ())


def test_the_next_plan_starts_at_the_end_of_the_last_one_and_names_it() -> None:
    state = onward({A: 7, B: 5})
    plan = planned(
        snapshot_of({A: (3, 10), B: (0, 5)}, committed={A: Committed(7, 2), B: Committed(5, 0)}),
        state,
    )
    assert (plan.number, plan.origin.previous) == (5, state.last.id)
    assert offsets_of(plan) == {A: [(7, 10)]}
    assert plan.loaded_until == {A: 10, B: 5}
    assert plan.expected_commits == {A: Committed(7, 2), B: Committed(5, 0)}


LATEST = settings_of(starting_offsets="latest")
AT_NOON = settings_of(starting_offsets="2026-01-31T12:00:00+00:00")
SKIPPING = settings_of(on_data_loss="skip")
TRANSFORMED = with_keys(SETTINGS, transform={"dataframe": "a:b"})
CONSUMED = snapshot_of({A: (3, 10)}, committed={A: Committed(8, 17)}, starts={A: 5})
DATED = snapshot_of({A: (3, 10), B: (3, 10), C: (3, 10)}, starts={A: 6, B: 1, C: 10})
WITH_NEW_TOPIC = snapshot_of({A: (0, 10), OTHER: (2, 9)})
WITH_NEW_PARTITION = snapshot_of({A: (0, 10), B: (2, 9)})
WITH_EMPTY_LOG = snapshot_of({A: (0, 10), B: (4, 4)})
WITHOUT_LEADER = snapshot_of({A: (0, 10)}, leaderless=frozenset({B}))
NEW_AT_FIRST = settings_of(starting_offsets="latest", new_topics_starting_offsets="earliest")
NEW_AT_LATEST = settings_of(starting_offsets="latest", new_topics_starting_offsets="latest")


@pytest.mark.parametrize(
    ("snapshot", "state", "settings", "read", "positions"),
    [
        # the latest record
        (snapshot_of({A: (3, 10)}), FirstRun(), LATEST, {}, {A: 10}),
        # the first record as late as a time, or the end if it came after the end was read
        (DATED, FirstRun(), AT_NOON, {A: [(6, 10)], B: [(3, 10)]}, {A: 10, B: 10, C: 10}),
        (snapshot_of({A: (3, 10)}, starts={A: 12}), FirstRun(), AT_NOON, {}, {A: 10}),
        # the group's offset, whatever policy says
        (CONSUMED, FirstRun(), SETTINGS, {A: [(8, 10)]}, {A: 10}),
        (CONSUMED, FirstRun(), LATEST, {A: [(8, 10)]}, {A: 10}),
        (CONSUMED, FirstRun(), AT_NOON, {A: [(8, 10)]}, {A: 10}),
        # a new topic by its own policy, and a new partition of a known one at its first record
        (WITH_NEW_TOPIC, onward({A: 10}), NEW_AT_FIRST, {OTHER: [(2, 9)]}, {A: 10, OTHER: 9}),
        (WITH_NEW_TOPIC, onward({A: 10}), NEW_AT_LATEST, {}, {A: 10, OTHER: 9}),
        (WITH_NEW_PARTITION, onward({A: 10}), NEW_AT_LATEST, {B: [(2, 9)]}, {A: 10, B: 9}),
        # an empty log that is seen for the first time
        (WITH_EMPTY_LOG, onward({A: 10}), SETTINGS, {}, {A: 10, B: 4}),
        # a log without a leader keeps its position
        (
            WITHOUT_LEADER,
            onward({A: 7, B: 5}),
            settings_of(on_no_leader="skip"),
            {A: [(7, 10)]},
            {A: 10, B: 5},
        ),
    ],
)
def test_a_log_starts_where_its_group_its_last_plan_or_policy_decides_and_the_plan_keeps_it(
    snapshot: Snapshot,
    state: FirstRun | UpToDate,
    settings: Settings,
    read: dict[TopicPartition, list[tuple[int, int]]],
    positions: dict[TopicPartition, int],
) -> None:
    plan = planned(snapshot, state, settings)
    assert (offsets_of(plan), plan.loaded_until) == (read, positions)
    assert plan.kind is (PlanKind.INGEST if read else PlanKind.START)
    assert plan.expected_commits.items() >= snapshot.committed.items()


def followed(ours: int, theirs: int) -> UpToDate:
    """Another client moved the offset, and the run continues from there."""
    return UpToDate(last_plan({A: ours}), {A: theirs}, followed={A: theirs})


@pytest.mark.parametrize(
    ("offsets", "state", "read", "lost"),
    [
        ((10, 20), onward({A: 7}), {A: [(10, 20)]}, Loss(A, 7, 10, LossReason.EXPIRED)),
        ((10, 10), onward({A: 7}), {}, Loss(A, 7, 10, LossReason.EXPIRED)),
        ((0, 9), followed(4, 7), {A: [(7, 9)]}, Loss(A, 4, 7, LossReason.MOVED)),
        ((0, 10), followed(7, 10), {}, Loss(A, 7, 10, LossReason.MOVED)),
    ],
    ids=["expired", "all of them expired", "another client passed them", "up to the end"],
)
def test_offsets_that_are_passed_over_are_losses_that_the_plan_keeps(
    offsets: tuple[int, int],
    state: UpToDate,
    read: dict[TopicPartition, list[tuple[int, int]]],
    lost: Loss,
) -> None:
    committed = {A: Committed(state.positions[A], 9)}
    plan = planned(snapshot_of({A: offsets}, committed=committed), state, SKIPPING)
    assert (offsets_of(plan), plan.losses.lost) == (read, (lost,))
    assert (plan.loaded_until, plan.expected_commits) == ({A: offsets[1]}, committed)
    assert plan.kind is (PlanKind.INGEST if read else PlanKind.START)


def test_nothing_new_is_no_plan() -> None:
    assert next_plan(snapshot_of({A: (0, 10), B: (4, 4)}), onward({A: 10, B: 4})) is None


def test_positions_of_logs_that_are_gone_are_carried_on() -> None:
    plan = planned(
        snapshot_of({A: (0, 12)}, committed={OTHER: Committed(3, 1)}),
        onward({A: 10, OTHER: 3}, topic_ids={"other": "id-2"}),
    )
    assert plan.loaded_until == {A: 12, OTHER: 3}
    assert plan.expected_commits[OTHER] == Committed(3, 1)
    assert plan.topic_ids == {"other": "id-2"}


# -- unusual states


@pytest.mark.parametrize("committed", [{}, {A: Committed(7, 2)}])
def test_offsets_that_are_gone_stop_the_run_under_fail(
    committed: dict[TopicPartition, Committed],
) -> None:
    state = FirstRun() if committed else onward({A: 7})
    with pytest.raises(
        DataLoss, match="3 offsets are gone: wanted 7, the log starts at 10"
    ) as caught:
        next_plan(snapshot_of({A: (10, 20)}, committed=committed), state)
    assert caught.value.where == {"topic": "clicks", "partition": 0, "offset": 7}


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_an_older_consumers_offset_above_the_end_of_the_log_is_a_bad_offset(policy: str) -> None:
    with pytest.raises(BadOffset, match="above the end") as caught:
        next_plan(
            snapshot_of({A: (3, 10)}, committed={A: Committed(11, 1)}),
            settings=settings_of(on_data_loss=policy),
        )
    assert caught.value.where == {"topic": "clicks", "partition": 0, "offset": 11}


def test_an_offset_above_the_end_of_a_log_that_we_know_may_only_be_set_back_to_ours() -> None:
    state = replace(onward({A: 7}), positions={A: 11}, followed={A: 11})
    with pytest.raises(BadOffset) as caught:
        next_plan(snapshot_of({A: (3, 10)}, ledger=Ledger("u", state.last)), state)
    assert caught.value.action.endswith(
        "from 3 to 10. Set the committed offset back to 7, the loaded-until offset"
    )


def test_a_position_that_an_open_transaction_covers_may_be_tried_again() -> None:
    snapshot = with_facts(snapshot_of({}), extents={A: PartitionOffsets(3, 10, 12)})
    with pytest.raises(NotYetReadable, match="above the last stable offset 10") as caught:
        next_plan(snapshot, onward({A: 12}))
    assert caught.value.exit_code == 6
    assert caught.value.where == {"topic": "clicks", "partition": 0, "offset": 12}
    with pytest.raises(PartitionTruncated, match="truncated at offset 12 or below"):
        next_plan(snapshot, onward({A: 13}))


def test_a_log_without_a_leader_stops_the_run_under_fail() -> None:
    with pytest.raises(BrokerUnreachable, match="no_leader") as caught:
        next_plan(snapshot_of({A: (0, 10)}, leaderless=frozenset({B})))
    assert caught.value.where["partition"] == 1


@pytest.mark.parametrize(
    ("known", "reported", "is_another"),
    [
        ({}, "id-1", False),
        ({"clicks": "id-1"}, "id-2", True),
        ({"clicks": "zxid-5"}, "id-1", False),
        ({"clicks": "zxid-5"}, "zxid-6", True),
    ],
)
def test_a_topic_is_another_one_if_its_id_of_the_same_kind_is_and_else_its_id_is_kept(
    known: dict[str, str], reported: str, is_another: bool
) -> None:
    snapshot = snapshot_of({A: (0, 10)}, topic_ids={"clicks": reported})
    state = onward({A: 7}, topic_ids=known)
    if is_another:
        with pytest.raises(NeedsDecision, match="deleted and recreated"):
            next_plan(snapshot, state)
    else:
        assert planned(snapshot, state).topic_ids == {"clicks": reported}


DOTTED = ["clicks", "my.topic"]
MANY = ["__consumer_offsets", *"gfedcba"]
SPELLING = "^Check its spelling: the cluster has "


@pytest.mark.parametrize(
    ("topics", "matched", "others"),
    [
        (["clicks"], ["clicks"], {}),
        (DOTTED, DOTTED, {}),
        # an expression that is no name, beside a topic that is there
        (["clicks", "new-.*", "my[.]topic"], ["clicks"], {}),
        # the unfinished plan reports it
        (["clicks"], [], {"gone": {"clicks"}}),
    ],
)
def test_a_topic_that_exists_or_need_not_exist_is_not_missing(
    topics: list[str], matched: list[str], others: dict[str, Any]
) -> None:
    reject_missing_topics(settings_of(topics=topics), matched, **others)


def test_names_that_exist_are_not_compared_with_each_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"a.{number}" for number in range(300)]
    settings = settings_of(topics=names)
    monkeypatch.setattr(re, "fullmatch", None)
    reject_missing_topics(settings, names)


@pytest.mark.parametrize(
    ("topics", "matched", "there", "others", "topic", "action"),
    [
        (["clicks"], [], [], {"gone": {"orders"}}, "clicks", ""),
        # a topic that was read is not misspelt
        (["clicks"], [], ["click"], {"read": {"clicks"}}, "clicks", "^((?!spelling).)*deleted"),
        (
            ["clicks"],
            [],
            ["orders", "click", "clicks-2"],
            {},
            "clicks",
            f"{SPELLING}click, clicks-2$",
        ),
        (DOTTED, ["clicks"], ["clicks", "my.topics"], {}, "my.topic", f"{SPELLING}my.topics$"),
        (["x.*"], [], MANY, {}, None, "[.] The cluster has a, b, c, d, e and 2 more$"),
    ],
)
def test_a_missing_topic_is_reported_with_the_names_that_there_are(
    topics: list[str],
    matched: list[str],
    there: list[str],
    others: dict[str, Any],
    topic: str | None,
    action: str,
) -> None:
    with pytest.raises(TopicMissing) as caught:
        reject_missing_topics(settings_of(topics=topics), matched, lambda: there, **others)
    assert caught.value.where.get("topic") == topic
    assert re.search(action, caught.value.action)


@pytest.mark.parametrize(
    ("allow", "deny", "there"),
    [
        (["c.*"], [".*"], []),
        (["c.*"], ["clicks", "calls"], []),
        (["clicks"], ["cl.*"], []),
        (["clicks", "orders"], ["clicks"], ["orders"]),
    ],
)
def test_allowed_and_denied_topics_are_reported_as_denied(
    allow: list[str], deny: list[str], there: list[str]
) -> None:
    settings = settings_of(topics=allow, exclude_topics=deny)
    with pytest.raises(SettingsError, match="source.exclude_topics excludes it") as caught:
        reject_missing_topics(settings, there, lambda: ["clicks", "calls", "orders"])
    assert caught.value.where["topic"] in {"clicks", "calls"}
    assert caught.value.where["key"] == "source.exclude_topics"


def test_expressions_must_match_something_that_is_not_excluded() -> None:
    settings = settings_of(topics=["x.*"], exclude_topics=["clicks"])
    with pytest.raises(TopicMissing, match="No topic matches"):
        reject_missing_topics(settings, [], lambda: ["clicks"])


def test_a_topic_name_without_a_valid_folder_is_rejected_for_tables_partitioned_by_topic() -> None:
    topics = ["clicks", "__HIVE_DEFAULT_PARTITION__"]
    reject_null_partition_value(SETTINGS, topics)
    partitioned = settings_of(table={"partition_by": ["event_date", "topic"]})
    reject_null_partition_value(partitioned, ["clicks"])
    with pytest.raises(SettingsError) as caught:
        reject_null_partition_value(partitioned, topics)
    assert caught.value.where == {
        "topic": "__HIVE_DEFAULT_PARTITION__",
        "key": "table.partition_by",
    }


@pytest.mark.parametrize(
    ("of_then", "now", "expected"),
    [
        (SETTINGS, SETTINGS, False),
        (SETTINGS, TRANSFORMED, False),
        (settings_of(isolation_level="read_uncommitted"), SETTINGS, False),
        (TRANSFORMED, SETTINGS, True),
        (TRANSFORMED, with_keys(SETTINGS, transform={"dataframe": "c:d"}), True),
    ],
)
def test_a_plan_records_whether_a_transform_shaped_its_rows_whatever_the_present_conf_is(
    of_then: Settings, now: Settings, expected: bool
) -> None:
    assert may_be_transformed(last_plan({}, shape=shape_of_rows(of_then)), now) is expected


# -- laws

LIMITS = st.fixed_dictionaries(
    {
        "max_records_per_plan": CAPS,
        "max_bytes_per_plan": st.none() | st.integers(1, 100_000),
        "target_task_bytes": st.integers(1, 50_000),
    }
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Snapshot, FirstRun | UpToDate, Settings]:
    extents = draw(EXTENTS)
    known = draw(st.lists(st.sampled_from(sorted(extents)), unique=True))
    positions = {
        partition: draw(st.integers(max(0, extents[partition][0] - 5), extents[partition][1]))
        for partition in known
    }
    state = onward(positions, number=draw(st.integers(1, 50))) if positions else FirstRun()
    policy = settings_of(
        draw(LIMITS),
        starting_offsets=draw(st.sampled_from(["earliest", "latest"])),
        on_data_loss="skip",
    )
    return snapshot_of(extents, bytes_per_offset=draw(COSTS)), state, policy


@given(worlds())
def test_ranges_are_whole_disjoint_in_order_not_empty_and_inside_the_log(
    world: tuple[Snapshot, FirstRun | UpToDate, Settings],
) -> None:
    snapshot, state, policy = world
    plan = next_plan(snapshot, state, policy)
    if plan is None:
        return
    lost = {loss.partition: loss.until_offset for loss in plan.losses.lost}
    for partition, found in offsets_of(plan).items():
        offsets = snapshot.readable[partition]
        known = state.positions.get(partition) if isinstance(state, UpToDate) else None
        start = lost.get(partition, known if known is not None else offsets.log_start_offset)
        assert found[0][0] == start >= offsets.log_start_offset
        assert found[-1][1] == plan.loaded_until[partition] <= offsets.end_offset
        assert all(before[1] == after[0] for before, after in zip(found, found[1:]))
        assert all(start < stop for start, stop in found)
    assert set(plan.loaded_until) == set(snapshot.readable) | set(
        state.positions if isinstance(state, UpToDate) else ()
    )
    assert set(plan.expected_commits) == set(plan.loaded_until)
    assert with_id(plan).id


def shuffled(mapping: Mapping[Any, Any], random: Any) -> dict[Any, Any]:
    items = list(mapping.items())
    random.shuffle(items)
    return dict(items)


@given(worlds(), st.randoms())
def test_the_order_of_the_input_does_not_matter_and_planning_twice_gives_the_same(
    world: tuple[Snapshot, FirstRun | UpToDate, Settings], random: Any
) -> None:
    snapshot, state, policy = world
    extents = shuffled(snapshot.readable, random)
    sizes = shuffled(snapshot.bytes_per_offset, random)
    turned, other = with_facts(snapshot, extents=extents, bytes_per_offset=sizes), state
    if isinstance(state, UpToDate):
        other = replace(state, positions=shuffled(state.positions, random))
    plan = next_plan(snapshot, state, policy)
    assert next_plan(turned, other, policy) == plan == next_plan(snapshot, state, policy)


@given(worlds())
def test_no_range_is_much_larger_than_a_task_may_be(
    world: tuple[Snapshot, FirstRun | UpToDate, Settings],
) -> None:
    snapshot, state, policy = world
    plan = next_plan(snapshot, state, policy)
    for r in plan.ranges if plan else ():
        cost = snapshot.bytes_per_offset.get(r.partition, ASSUMED_BYTES_PER_OFFSET)
        assert r.size == 1 or (r.size - 1) * cost <= 1.5 * policy.limits.target_task_bytes


@settings(max_examples=50)
@given(worlds())
def test_runs_one_after_another_read_every_offset_once_and_end(
    world: tuple[Snapshot, FirstRun | UpToDate, Settings],
) -> None:
    snapshot, state, policy = world
    for _ in range(2500):
        plan = next_plan(snapshot, state, policy)
        if plan is None:
            break
        plan = with_id(plan)
        state = UpToDate(plan, plan.loaded_until)
    else:
        pytest.fail("planning never ends")
    if isinstance(state, UpToDate):
        for partition, offsets in snapshot.readable.items():
            assert state.positions[partition] == offsets.end_offset


def test_a_plan_knows_what_the_table_held_and_where_the_logs_started_when_it_was_made() -> None:
    plan = planned(snapshot_of({A: (2, 9)}, table=Table("t1", 5, 3)), onward({A: 4}))
    assert (plan.table.transaction_version, log_starts_of(plan)) == (3, {A: 2})
    first = planned(snapshot_of({A: (2, 9)}, table=Table("t1", 5, None)))
    assert first.table.transaction_version == 0
