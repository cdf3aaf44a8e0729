"""The sensor that waits for complete topics, deferred and not."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from etl.errors import BrokerUnreachable, NotYetReadable, TopicMissing
from tests.on_airflow.home import CONF, ENVIRONMENT
from tests.on_airflow.running import run
from tests.on_airflow.stand_in import StandIn

pytestmark = pytest.mark.usefixtures("database")

FIVE, SIX = "2026-11-10T05:00:00+00:00", "2026-11-10T06:00:00+00:00"
BY_PARAMS = {"from": FIVE, "until": SIX}
COMPLETE = {"document": {"ready": True, "message": "2 partitions complete"}}
NOT_YET = {
    "code": NotYetReadable.exit_code,
    "document": {"ready": False, "message": "1 of 2 partitions not complete"},
}
AWAY = {
    "code": BrokerUnreachable.exit_code,
    "document": BrokerUnreachable("no broker answers").as_json(),
}
NO_TOPIC = {
    "code": TopicMissing.exit_code,
    "document": TopicMissing("the topic is not there", topic="clicks").as_json(),
}
BOUNDS = ["--until", SIX, "--assume-ready-after", "600s", "--json"]
WORDS = ["-m", "etl", "topics", "ready-to-load", str(CONF / "clicks.yaml"), *BOUNDS]
WHEN = datetime(2026, 11, 16, tzinfo=UTC)


def test_logs_that_are_complete_are_loaded_at_once(stand_in: StandIn) -> None:
    stand_in.command(COMPLETE)
    ran = run("quick", WHEN, BY_PARAMS)
    assert ran.tasks["wait_until_ready"] == ("success", 1) and ran.tasks["load"][0] == "success"
    assert [request.words for request in stand_in.calls("python")] == [WORDS]


def test_logs_that_are_not_complete_are_waited_for_by_a_trigger_also_while_brokers_are_away(
    stand_in: StandIn,
) -> None:
    stand_in.command(NOT_YET, AWAY, NOT_YET, COMPLETE)
    ran = run("quick", WHEN.replace(hour=1), BY_PARAMS)
    assert ran.tasks["wait_until_ready"][0] == "success" and ran.tasks["load"][0] == "success"
    assert [request.words for request in stand_in.calls("python")] == [WORDS] * 4


def test_without_a_triggerer_a_worker_looks(stand_in: StandIn) -> None:
    stand_in.command(COMPLETE)
    assert run("polling", WHEN.replace(hour=2), BY_PARAMS).state == "success"


@pytest.mark.parametrize(
    "answers", [(NO_TOPIC,), (NOT_YET, NO_TOPIC)], ids=["at the first look", "in the trigger"]
)
def test_a_conf_that_no_look_can_use_fails_and_nothing_is_loaded(
    stand_in: StandIn, answers: tuple[dict[str, Any], ...]
) -> None:
    stand_in.command(*answers)
    ran = run("quick", WHEN.replace(hour=3, minute=len(answers)), BY_PARAMS)
    assert (
        ran.tasks["wait_until_ready"][0] == "failed" and ran.tasks["load"][0] == "upstream_failed"
    )
    assert stand_in.calls() == []


def test_a_run_without_an_interval_waits_for_nothing_and_fails(stand_in: StandIn) -> None:
    ran = run("quick", WHEN.replace(hour=4), {"until": SIX})
    assert ran.tasks["wait_until_ready"] == ("failed", 1)
    assert stand_in.calls("python") == []


def event_of(trigger: Any) -> dict[str, Any]:
    async def first() -> dict[str, Any]:
        async for event in trigger.run():
            payload: dict[str, Any] = event.payload
            return payload
        return {}

    return asyncio.run(first())


def test_a_trigger_is_the_same_after_it_was_kept_in_airflows_database(stand_in: StandIn) -> None:
    from importlib import import_module

    from etl.airflow.sensors import TopicsReadyTrigger

    stand_in.command(COMPLETE)
    name, kept = TopicsReadyTrigger(
        str(ENVIRONMENT.python), {"A": "b"}, WORDS[2:], 0.01
    ).serialize()
    module, _, kind = name.rpartition(".")
    again = getattr(import_module(module), kind)(**kept)
    assert again.serialize() == (name, kept)
    assert event_of(again) == {"message": "2 partitions complete"}


def test_a_triggerer_without_the_environment_reports_it() -> None:
    from etl.airflow.sensors import TopicsReadyTrigger

    assert (
        "The triggerer needs it, too"
        in event_of(TopicsReadyTrigger("/no/such/python", {}, WORDS[2:], 0.01))["error"]
    )


def test_a_worker_or_a_triggerer_without_the_package_reports_the_command_that_installs_it(
    stand_in: StandIn,
) -> None:
    from etl.airflow.sensors import TopicsReadyTrigger

    stand_in.without_package()
    reported = event_of(TopicsReadyTrigger(str(ENVIRONMENT.python), {}, WORDS[2:], 0.01))["error"]
    assert (
        "No module named 'etl'" in reported
        and f"{ENVIRONMENT.python} -m pip install offset-range-etl" in reported
    )
    ran = run("quick", WHEN.replace(hour=5), BY_PARAMS)
    assert (
        ran.tasks["wait_until_ready"] == ("failed", 1) and ran.tasks["load"][0] == "upstream_failed"
    )
