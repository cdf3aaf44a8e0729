"""Groups in ZooKeeper are divided as the classes of each release divide them; their answers are in
`tests/groups/golden.json`.
"""

from __future__ import annotations

import pytest

from etl.decide.group_assignment import (
    AssignmentContext,
    Strategy,
    assign,
    assignment_of,
    context_of,
    java_hash,
    java_order,
)
from etl.errors import SettingsError
from etl.ledger.registrations import parse_registration
from etl.model.partitions import TopicPartition
from tests.groups.golden import golden, key
from tests.groups.oracles import DIVIDED, digest, group_for, ours

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


def test_range_cuts_the_keys_of_physical_logs_as_text() -> None:
    partitions = [TopicPartition("demo", p, 10) for p in range(2)] + [
        TopicPartition("demo", p, 1) for p in range(12)
    ]
    context = AssignmentContext(
        {"g1_cy": {"demo": 1}, "g1_vm-1": {"demo": 2}}, {"demo": partitions}
    )
    found = {
        thread: [partition.key for partition in some]
        for thread, some in assign(context, Strategy.RANGE, "g1_cy").items()
    }
    assert found == {
        "g1_cy-0": ["1-0", "1-1", "1-10", "1-11", "1-2"],
        "g1_vm-1-0": ["1-3", "1-4", "1-5", "1-6", "1-7"],
        "g1_vm-1-1": ["1-8", "1-9", "10-0", "10-1"],
    }


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (
            Strategy.ROUND_ROBIN,
            [["orders 0", "clicks 1"], ["orders 1", "clicks 2"], ["orders 2"], ["clicks 0"]],
        ),
        (
            Strategy.ROUND_ROBIN_0_10,
            [["orders 0", "clicks 1"], ["orders 1", "clicks 2"], ["orders 2"], ["clicks 0"]],
        ),
        (
            Strategy.ROUND_ROBIN_1_0,
            [["clicks 0", "orders 1"], ["clicks 1", "orders 2"], ["clicks 2"], ["orders 0"]],
        ),
    ],
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
    context = AssignmentContext(
        {"c": {"t": 11}}, {"t": [TopicPartition("t", p) for p in range(11)]}
    )
    assert {
        thread: some[0].partition for thread, some in assign(context, Strategy.RANGE, "c").items()
    } == {"c-0": 0, "c-1": 1, "c-10": 2, **{f"c-{n}": n + 1 for n in range(2, 10)}}


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


def test_a_member_with_a_filter_counts_for_existing_topics_and_surplus_threads_own_none() -> None:
    registered = {
        "g_a": parse_registration(
            b'{"version":1,"subscription":{"ord.*":1},"pattern":"white_list","timestamp":"1"}',
            path="/a",
        ),
        "g_b-c": parse_registration(
            b'{"version":1,"subscription":{"orders":3},"pattern":"static","timestamp":"1"}',
            path="/b",
        ),
    }
    context = context_of(registered, ORDERS_AND_CLICKS)
    found = assign(context, Strategy.RANGE, "g_a")
    assert {thread: len(some) for thread, some in found.items()} == {
        "g_a-0": 1,
        "g_b-c-0": 1,
        "g_b-c-1": 1,
        "g_b-c-2": 0,
    }
    assert assignment_of("g_b-c", found) == {
        TopicPartition("orders", 1): "g_b-c-0",
        TopicPartition("orders", 2): "g_b-c-1",
    }
    assert assignment_of("g_b", found) == {}


def test_a_hash_is_that_of_java_and_texts_are_ordered_by_units_of_utf_16() -> None:
    assert [java_hash(text) for text in ("[orders,0]", "[clicks,2]", "", "\U0001f600")] == [
        -1093576615,
        1627908561,
        0,
        1772899,
    ]
    assert java_hash("rs,0]", prefix_hash=java_hash("[orde")) == java_hash("[orders,0]")
    assert sorted(["\ue000", "\U0001f600", "b", "a-10", "a-2"], key=java_order) == [
        "a-10",
        "a-2",
        "b",
        "\U0001f600",
        "\ue000",
    ]
