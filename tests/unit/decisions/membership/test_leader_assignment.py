"""What we assign as the leader of a group is what Kafka's own assignors assign; their answers are
in `tests/groups/golden.json`.
"""

from __future__ import annotations

from random import Random

import pytest

from etl.decide.group_assignment import STRATEGIES, Assigned, GroupMember, assign_as_leader
from etl.errors import SettingsError
from etl.model.partitions import TopicPartition
from tests.groups.golden import golden
from tests.groups.oracles import digest, lead
from tests.groups.random_groups import led_group_of


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
    members = [
        GroupMember("c1", frozenset({"t"})),
        GroupMember("c2", frozenset({"t"}), "i"),
        GroupMember("c0", frozenset({"t"})),
    ]
    assert sorted(
        len(partitions) for partitions in assign_as_leader(strategy, members, {"t": 5}).values()
    ) == [
        1,
        2,
        2,
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_log_with_readers_is_assigned_to_one_member_that_reads_it(strategy: str) -> None:
    for seed in range(60):
        members, partitions = led_group_of(seed)
        found = assign_as_leader(strategy, members, partitions)
        read = {topic for member in members for topic in member.topics}
        assert sorted(
            partition for topic_partitions in found.values() for partition in topic_partitions
        ) == sorted(
            TopicPartition(topic, p)
            for topic, count in partitions.items()
            if topic in read
            for p in range(count)
        )
        assert all(
            partition.topic in member.topics
            for member in members
            for partition in found[member.member_id]
        )


def test_sticky_members_keep_what_they_have_and_are_even() -> None:
    first = assign_as_leader(
        "sticky", [GroupMember(f"c{n}", frozenset({"t"})) for n in range(3)], {"t": 12}
    )
    joined = [
        GroupMember(f"c{n}", frozenset({"t"}), owned=first.get(f"c{n}", frozenset()), generation=5)
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
