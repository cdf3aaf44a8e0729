"""Recreated topics while brokers begin or stop to report ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.decide.recreated_or_truncated import compared_ids, creations_to_record
from etl.errors import NeedsDecision, SettingsError
from tests.builders import plain_plan, plain_snapshot
from tests.fakes.outside import Outside
from tests.fakes.stories import LOGS, accept, crash_at, outside_of, reject_missing_records, run
from tests.fakes.world import Crash, When

UPGRADED, OLD = {"clicks": "id-1"}, dict[str, str]()
either_way = pytest.mark.parametrize(
    ("before", "after"),
    [(OLD, UPGRADED), (UPGRADED, OLD)],
    ids=["brokers begin to report ids", "brokers cease to report ids"],
)


def loaded_with_ids(topic_ids: dict[str, str], creation: str = "zxid-5") -> Outside:
    outside = outside_of(15, 3, 4)
    outside.topic_ids, outside.creation_ids = dict(topic_ids), {"clicks": creation}
    run(outside)
    return outside


def make_again(outside: Outside, topic_ids: dict[str, str], creation: str = "zxid-9") -> None:
    outside.topic_ids, outside.creation_ids = dict(topic_ids), {"clicks": creation}
    outside.logs = {
        partition: replace(outside.logs[partition].recreated(), end=30) for partition in LOGS
    }


def grown(outside: Outside) -> None:
    for partition in outside.logs.values():
        partition.end += 5


@either_way
def test_a_recreated_topic_is_recognized_by_its_znode_if_only_one_side_has_the_brokers_id(
    before: dict[str, str], after: dict[str, str]
) -> None:
    outside = loaded_with_ids(before)
    make_again(outside, after)
    with pytest.raises(NeedsDecision, match="its id is zxid-9, plan 1 read zxid-5"):
        run(outside)
    accept(outside, "clicks")
    run(outside)
    reject_missing_records(outside)


@either_way
def test_a_topic_that_was_not_recreated_is_read_on_and_its_known_ids_are_kept(
    before: dict[str, str], after: dict[str, str]
) -> None:
    outside = loaded_with_ids(before)
    for ids in (after, before, after):
        outside.topic_ids = dict(ids)
        grown(outside)
        run(outside)
    plan = outside.newest_plan()
    assert plan and {*plan.topic_ids.values(), *plan.creation_ids.values()} == {
        *after.values(),
        "zxid-5",
    }


def test_a_copied_zookeeper_has_no_other_topic_if_the_brokers_report_the_topic_id() -> None:
    outside = loaded_with_ids(UPGRADED)
    outside.creation_ids = {"clicks": "zxid-9"}
    grown(outside)
    run(outside)
    plan = outside.newest_plan()
    assert plan and plan.creation_ids == {"clicks": "zxid-9"}


def test_the_znode_does_not_count_if_the_brokers_report_another_id() -> None:
    outside = loaded_with_ids(UPGRADED)
    make_again(outside, {"clicks": "id-2"}, creation="zxid-5")
    with pytest.raises(NeedsDecision, match="its id is id-2"):
        run(outside)
    with pytest.raises(SettingsError, match="another topic"):
        accept(outside, "clicks", is_same_log=True)


@pytest.mark.parametrize("stored", [False, True], ids=["no stored plan", "a stored plan"])
@pytest.mark.parametrize(("at_offset", "is_same_log"), [(None, False), (5, False), (None, True)])
def test_a_partition_of_a_recreated_topic_is_not_accepted_by_itself(
    stored: bool, at_offset: int | None, is_same_log: bool
) -> None:
    outside = loaded_with_ids(UPGRADED)
    if stored:
        grown(outside)
        with pytest.raises(Crash):
            run(outside, at=crash_at("store plan", When.AFTER))
    make_again(outside, {"clicks": "id-2"})
    before = dict(outside.plans)
    with pytest.raises(SettingsError) as rejected:
        accept(outside, "clicks:0", at_offset=at_offset, is_same_log=is_same_log)
    number = 2 if stored else 1
    assert rejected.value.message == (
        f"The topic was deleted and recreated: its id is id-2, plan {number} read id-1. Its "
        "partitions cannot be accepted one by one"
    )
    assert rejected.value.where == {"key": "--partition", "topic": "clicks", "partition": 0}
    assert rejected.value.action == (
        "Accept the topic as a whole: etl topics accept-changes CONF -p clicks --reason ..."
    )
    assert (rejected.value.exit_code, outside.plans) == (2, before)
    accept(outside, "clicks", "clicks:0")
    run(outside)
    reject_missing_records(outside)


def test_a_truncated_partition_is_accepted_by_itself_if_only_the_znode_id_differs() -> None:
    outside = loaded_with_ids(OLD)
    outside.creation_ids = {"clicks": "zxid-9"}
    outside.logs[LOGS[0]].cut(10)
    assert accept(outside, "clicks:0").loaded_until[LOGS[0]] == 10


def test_ids_of_two_kinds_are_not_compared() -> None:
    plan = plain_plan(topic_ids={"clicks": "id-1"})
    assert compared_ids("clicks", plan, plain_snapshot({}, topic_ids={"clicks": "zxid-9"})) is None
    assert compared_ids("clicks", plan, plain_snapshot({})) is None


def test_the_newest_creation_id_is_kept_also_for_topics_with_ids_of_brokers() -> None:
    ids = {"a": "id-1", "b": "zxid-2"}
    assert creations_to_record(
        ids, {"a": "zxid-1", "b": "zxid-2", "gone": "zxid-7"}, {"a": "zxid-3"}
    ) == {"a": "zxid-3"}
