"""Assignments of Kafka's own assignors (`tests/groups/golden.json`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import pytest

from etl.decide.group_assignment import (
    STRATEGIES,
    Assigned,
    AssignmentContext,
    GroupMember,
    MemberAction,
    MemberState,
    Phase,
    Step,
    Strategy,
    Timing,
    after_backoff,
    after_claim,
    after_nudge,
    after_observation,
    after_registration,
    after_rejected_claim,
    after_release,
    after_session_end,
    assign,
    assign_as_leader,
    assignment_of,
    backoff_s,
    context_of,
    find_unowned,
    java_hash,
    java_order,
    nudge_after_s,
    start_join,
)
from etl.errors import SettingsError
from etl.ledger.registrations import Registration, parse_registration
from etl.model.partitions import TopicPartition
from tests.groups.golden import golden, key
from tests.groups.oracles import DIVIDED, digest, group_for, lead, ours
from tests.groups.random_groups import led_group_of

ROUND_ROBINS = (Strategy.ROUND_ROBIN, Strategy.ROUND_ROBIN_0_10, Strategy.ROUND_ROBIN_1_0)
ORDERS_AND_CLICKS = {
    topic: [TopicPartition(topic, p) for p in (2, 0, 1)] for topic in ("orders", "clicks")
}


@pytest.mark.parametrize(("version", "strategy"), DIVIDED)
def test_random_groups_are_divided_as_the_classes_of_the_release_divide_them(
    version: str, strategy: Strategy
) -> None:
    answers = golden()["divided"][key(version, strategy)].split()
    assert [
        digest(ours(group_for(version, seed), strategy)) for seed in range(len(answers))
    ] == answers


def test_range_cuts_the_keys_of_jafka_partitions_as_text() -> None:
    of_broker_10 = [TopicPartition("demo", p, 10) for p in range(2)]
    of_broker_1 = [TopicPartition("demo", p, 1) for p in range(12)]
    members = {"g1_cy": {"demo": 1}, "g1_vm-1": {"demo": 2}}
    context = AssignmentContext(members, {"demo": of_broker_10 + of_broker_1})
    found = assign(context, Strategy.RANGE, "g1_cy")
    keys = {thread: [partition.key for partition in some] for thread, some in found.items()}
    assert keys == {
        "g1_cy-0": ["1-0", "1-1", "1-10", "1-11", "1-2"],
        "g1_vm-1-0": ["1-3", "1-4", "1-5", "1-6", "1-7"],
        "g1_vm-1-1": ["1-8", "1-9", "10-0", "10-1"],
    }


BY_HASH = [["orders 0", "clicks 1"], ["orders 1", "clicks 2"], ["orders 2"], ["clicks 0"]]
BY_HASH_IN_1_0 = [["clicks 0", "orders 1"], ["clicks 1", "orders 2"], ["clicks 2"], ["orders 0"]]


@pytest.mark.parametrize(
    ("strategy", "expected"), list(zip(ROUND_ROBINS, (BY_HASH, BY_HASH, BY_HASH_IN_1_0)))
)
def test_round_robin_deals_in_the_order_of_hashes_which_1_0_takes_of_other_names(
    strategy: Strategy, expected: list[list[str]]
) -> None:
    context = AssignmentContext(
        {f"g_c{n}": {"orders": 2, "clicks": 2} for n in (2, 1)}, ORDERS_AND_CLICKS
    )
    found = assign(context, strategy, "g_c1")
    assert [
        [str(partition) for partition in found[thread]]
        for thread in ("g_c1-0", "g_c1-1", "g_c2-0", "g_c2-1")
    ] == expected


def test_the_tenth_thread_comes_before_the_second() -> None:
    partitions = {"t": [TopicPartition("t", p) for p in range(11)]}
    found = assign(AssignmentContext({"c": {"t": 11}}, partitions), Strategy.RANGE, "c")
    order = sorted(found, key=lambda thread: found[thread][0].partition)
    assert order == ["c-0", "c-1", "c-10", *(f"c-{n}" for n in range(2, 10))]


@pytest.mark.parametrize(
    "members",
    [{"c1": {"orders": 1}, "c2": {"orders": 1, "clicks": 1}}, {"c1": {"orders": 1, "clicks": 2}}],
)
def test_round_robin_to_0_9_is_refused_where_its_consumers_fail(
    members: dict[str, dict[str, int]],
) -> None:
    context = AssignmentContext(members, ORDERS_AND_CLICKS)
    with pytest.raises(SettingsError, match="same topics with as many threads: c"):
        assign(context, Strategy.ROUND_ROBIN, "c1")
    dealt = assign(context, Strategy.ROUND_ROBIN_0_10, "c1")
    assert sorted(partition for some in dealt.values() for partition in some) == sorted(
        sum(ORDERS_AND_CLICKS.values(), [])
    )


@pytest.mark.parametrize("strategy", ROUND_ROBINS)
def test_logs_with_the_same_hash_have_no_order_that_two_consumers_would_share(
    strategy: Strategy,
) -> None:
    partitions = {topic: [TopicPartition(topic, 0)] for topic in ("Aa", "BB")}
    shared = AssignmentContext({"c1": {"Aa": 1, "BB": 1}, "c2": {"Aa": 1, "BB": 1}}, partitions)
    with pytest.raises(SettingsError, match="Aa 0 and BB 0"):
        assign(shared, strategy, "c1")
    alone = AssignmentContext({"c1": {"Aa": 1, "BB": 1}}, partitions)
    assert set(assign(alone, strategy, "c1")["c1-0"]) == {
        TopicPartition("Aa", 0),
        TopicPartition("BB", 0),
    }


def test_a_consumer_without_a_registration_has_no_assignment() -> None:
    with pytest.raises(SettingsError, match="This consumer is not registered") as failed:
        assign(AssignmentContext({"c1": {"t": 1}}, {}), Strategy.RANGE, "c2")
    assert failed.value.where == {"consumer": "c2"}


def registration_of(subscription: str, pattern: str) -> Registration:
    document = (
        f'{{"version":1,"subscription":{subscription},"pattern":"{pattern}","timestamp":"1"}}'
    )
    return parse_registration(document.encode(), path="/a")


def test_a_member_with_a_filter_counts_for_existing_topics_and_surplus_threads_own_none() -> None:
    registered = {
        "g_a": registration_of('{"ord.*":1}', "white_list"),
        "g_b-c": registration_of('{"orders":3}', "static"),
    }
    found = assign(context_of(registered, ORDERS_AND_CLICKS), Strategy.RANGE, "g_a")
    counts = {thread: len(some) for thread, some in found.items()}
    assert counts == {"g_a-0": 1, "g_b-c-0": 1, "g_b-c-1": 1, "g_b-c-2": 0}
    assert assignment_of("g_b-c", found) == {
        TopicPartition("orders", 1): "g_b-c-0",
        TopicPartition("orders", 2): "g_b-c-1",
    }
    assert assignment_of("g_b", found) == {}


def test_a_hash_is_that_of_java_and_texts_are_ordered_by_units_of_utf_16() -> None:
    hashes = {"[orders,0]": -1093576615, "[clicks,2]": 1627908561, "": 0, "\U0001f600": 1772899}
    assert {text: java_hash(text) for text in hashes} == hashes
    assert java_hash("rs,0]", prefix_hash=java_hash("[orde")) == java_hash("[orders,0]")
    in_order = ["a-10", "a-2", "b", "\U0001f600", "\ue000"]
    assert sorted(reversed(in_order), key=java_order) == in_order


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_random_groups_are_assigned_as_the_classes_of_the_java_consumer_assign_them(
    strategy: str,
) -> None:
    answers = golden()["led"][strategy].split()
    assert [digest(lead(strategy, *led_group_of(seed))) for seed in range(len(answers))] == answers


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_member_without_an_instance_id_that_stands_before_one_with_it_gets_its_part(
    strategy: str,
) -> None:
    topics = frozenset({"t"})
    members = [GroupMember("c1", topics), GroupMember("c2", topics, "i"), GroupMember("c0", topics)]
    found = assign_as_leader(strategy, members, {"t": 5})
    assert sorted(len(partitions) for partitions in found.values()) == [1, 2, 2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_partition_with_readers_is_assigned_to_one_member_that_reads_it(
    strategy: str,
) -> None:
    for seed in range(60):
        members, counts = led_group_of(seed)
        found = assign_as_leader(strategy, members, counts)
        read = {topic for member in members for topic in member.topics}
        readable = [
            TopicPartition(topic, p) for topic in read & counts.keys() for p in range(counts[topic])
        ]
        assert sorted(itertools.chain(*found.values())) == sorted(readable)
        for member in members:
            assert {partition.topic for partition in found[member.member_id]} <= member.topics


def test_sticky_members_keep_what_they_have_and_are_even() -> None:
    topics = frozenset({"t"})
    three = [GroupMember(f"c{n}", topics) for n in range(3)]
    first = assign_as_leader("sticky", three, {"t": 12})
    joined = [
        GroupMember(f"c{n}", topics, owned=first.get(f"c{n}", frozenset()), generation=5)
        for n in range(4)
    ]
    then = assign_as_leader("sticky", joined, {"t": 12})
    assert {len(partitions) for partitions in then.values()} == {3}
    assert all(then[member] < first[member] for member in first)


def test_a_cooperative_member_gets_only_released_logs_and_all_of_them_after_rebalances() -> None:
    for seed in range(40):
        random = Random(seed)
        members, partitions = led_group_of(seed)
        owned: Assigned = {}
        for generation in range(8):
            reported = [
                GroupMember(
                    one.member_id,
                    one.topics,
                    one.instance_id,
                    owned.get(one.member_id, frozenset()),
                    generation,
                )
                for one in random.sample(members, len(members))
            ]
            found = assign_as_leader("cooperative-sticky", reported, partitions)
            for member, topic_partitions in found.items():
                assert not any(
                    topic_partitions & theirs for other, theirs in owned.items() if other != member
                )
            if found == owned:
                break
            if generation:
                owned = found
            else:
                owned = {
                    members[0].member_id: frozenset(
                        TopicPartition(topic, p)
                        for topic in members[0].topics & partitions.keys()
                        for p in range(partitions[topic])
                    )
                }
        assert found == owned


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(SettingsError, match="unknown assignment strategy") as failed:
        assign_as_leader("uniform", [], {})
    assert failed.value.where == {"strategy": "uniform"}
    assert assign_as_leader("sticky", [], {"t": 1}) == {}


TIMING = Timing(join_timeout_s=60, backoff_s=2, others_backoff_s=2)
UNJOINED, JOINING = MemberState(), MemberState(Phase.JOINING, "ab")
STABLE, LETTING_GO = MemberState(Phase.STABLE, "ab", 1), MemberState(Phase.LETTING_GO, "ab", 1)
LOGS = [TopicPartition("clicks", p) for p in range(4)]
Event = Callable[[MemberState], Step]


def observes(members: str, *, owns_its_share: bool) -> Event:
    return lambda state: after_observation(state, members, owns_its_share=owns_its_share)


def is_rejected_after(elapsed_s: float) -> Event:
    return lambda state: after_rejected_claim(state, TIMING, elapsed_s=elapsed_s)


def claims(*, is_called: bool) -> Event:
    return lambda state: after_claim(state, is_called=is_called)


@pytest.mark.parametrize(
    ("before", "happens", "after", "does"),
    [
        (UNJOINED, start_join, Phase.JOINING, MemberAction.REGISTER),
        (JOINING, after_registration, Phase.JOINING, MemberAction.LOOK),
        (JOINING, observes("ab", owns_its_share=False), Phase.JOINING, MemberAction.CLAIM),
        (JOINING, is_rejected_after(59.9), Phase.JOINING, MemberAction.WAIT),
        (JOINING, is_rejected_after(60), Phase.UNJOINED, MemberAction.LEAVE),
        (JOINING, after_backoff, Phase.JOINING, MemberAction.LOOK),
        (JOINING, claims(is_called=False), Phase.STABLE, MemberAction.REST),
        (JOINING, claims(is_called=True), Phase.STABLE, MemberAction.LOOK),
        (STABLE, observes("ab", owns_its_share=True), Phase.STABLE, MemberAction.REST),
        (STABLE, observes("abc", owns_its_share=True), Phase.LETTING_GO, MemberAction.LET_GO),
        (STABLE, observes("ab", owns_its_share=False), Phase.LETTING_GO, MemberAction.LET_GO),
        (LETTING_GO, after_release, Phase.JOINING, MemberAction.LOOK),
    ],
)
def test_each_event_has_one_answer(
    before: MemberState, happens: Event, after: Phase, does: MemberAction
) -> None:
    found, action = happens(before)
    assert (found.phase, action) == (after, does)


@pytest.mark.parametrize("before", [UNJOINED, JOINING, STABLE, LETTING_GO], ids=str)
def test_a_member_whose_session_ended_is_no_member_in_any_state(before: MemberState) -> None:
    assert after_session_end(before).phase is Phase.UNJOINED


def test_a_hundred_events_without_a_change_remove_no_member() -> None:
    standing = STABLE
    for _ in range(100):
        standing, does = after_observation(standing, "ab", owns_its_share=True)
        assert does is MemberAction.REST
    assert standing == STABLE


def test_a_backoff_ends_with_the_time_to_join() -> None:
    found = [backoff_s(TIMING, elapsed_s=elapsed) for elapsed in (0, 57, 59, 60, 61)]
    assert found == [2, 2, 1, 0, 0]


def test_others_are_notified_after_their_backoff_then_half_as_often_up_to_a_limit() -> None:
    standing, after = MemberState(Phase.STABLE, "ab"), []
    while (wait_s := nudge_after_s(standing, TIMING)) is not None:
        after.append(wait_s)
        standing = after_nudge(standing)
    assert after == [3, 6, 12, 24, 48]
    seen_again = after_observation(
        MemberState(Phase.JOINING, "ab", len(after)), "abc", owns_its_share=False
    )[0]
    assert nudge_after_s(seen_again, TIMING) == 3, "another group is another matter"


def test_others_with_a_longer_backoff_than_the_time_to_join_are_called_once() -> None:
    timing = Timing(join_timeout_s=5, others_backoff_s=10)
    assert nudge_after_s(MemberState(), timing) == 15
    assert nudge_after_s(after_nudge(MemberState()), timing) is None


def test_a_log_of_others_without_an_owner_is_ownerless_and_one_of_ours_is_our_own_matter() -> None:
    assert find_unowned(LOGS[1:], LOGS[2:3]) == {LOGS[1], LOGS[3]}
    assert find_unowned([], LOGS) == frozenset()
