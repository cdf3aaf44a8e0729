"""A topic that is recreated between the plan and the end of the append, on brokers without topic
ids.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.errors import TopicRecreated
from tests.fakes.outside import Outside
from tests.fakes.stories import LOGS, accept, crash_at, outside_of, run
from tests.fakes.world import Crash, FakeWorld, When


def loaded(**ids: str) -> Outside:
    outside = outside_of(5, 3, 4)
    outside.topic_ids, outside.creation_ids = ids, {"clicks": "zxid-5"}
    run(outside)
    for partition in outside.logs.values():
        partition.end += 10
    return outside


def recreated_at(outside: Outside, step: str, when: When, **ids: str) -> None:
    """A run in which the topic is recreated at this moment; the new one is longer."""

    def change(now: str, side: When) -> None:
        if (now, side) == (step, when) and outside.creation_ids == {"clicks": "zxid-5"}:
            outside.creation_ids, outside.topic_ids = {"clicks": "zxid-9"}, ids
            outside.logs = {
                partition: replace(outside.logs[partition].recreated(), end=60)
                for partition in LOGS
            }

    run(outside, at=change)


def reject_doubled_or_missing(outside: Outside) -> None:
    assert max(outside.records().values()) == max(outside.keys().values()) == 1
    assert set(outside.records()) >= {(partition, 1, at) for partition in LOGS for at in range(60)}


@pytest.mark.parametrize(
    ("step", "when"), [("store plan", When.AFTER), ("fetch", When.BEFORE), ("fetch", When.AFTER)]
)
def test_a_topic_recreated_before_the_append_stops_the_run_and_no_record_of_the_new_one_is_appended(
    step: str, when: When
) -> None:
    outside = loaded()
    with pytest.raises(TopicRecreated, match="its id is zxid-9, planned was zxid-5") as stopped:
        recreated_at(outside, step, when)
    assert (
        stopped.value.exit_code == 5
        and "etl topics accept-changes CONF -p clicks" in stopped.value.action
    )
    assert (outside.transaction_version(), len(outside.plans)) == (1, 2)
    accept(outside, "clicks")
    run(outside)
    reject_doubled_or_missing(outside)


def test_the_same_holds_while_a_plan_is_replayed() -> None:
    outside = loaded()
    with pytest.raises(Crash):
        run(outside, at=crash_at("fetch", When.AFTER))
    with pytest.raises(TopicRecreated, match="while it was read"):
        recreated_at(outside, "claim", When.AFTER)
    accept(outside, "clicks")
    run(outside)
    reject_doubled_or_missing(outside)


def test_a_topic_recreated_during_the_read_or_append_is_reported_before_any_further_step() -> None:
    outside = loaded()
    before = dict(outside.offsets)
    with pytest.raises(TopicRecreated, match="some of its rows may be records of the new topic"):
        recreated_at(outside, "open table", When.AFTER)
    assert (outside.transaction_version(), outside.offsets) == (2, before)


def test_with_topic_ids_from_brokers_zookeeper_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = loaded(clicks="id-1")
    requests: list[object] = []
    monkeypatch.setattr(FakeWorld, "creation_ids", lambda world, topics: requests.append(topics))
    run(outside)
    assert (requests, outside.transaction_version()) == ([], 2)
