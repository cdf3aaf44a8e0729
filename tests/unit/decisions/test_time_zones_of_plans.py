"""The time zone of Spark, and what is reported if rows were written with another one."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from etl.decide.time_zones import (
    TIME_ZONE,
    ZoneSource,
    describe_replaced_time_zones,
    describe_time_zones,
    in_time_zone,
    is_same_zone,
    local_zone,
    time_zone_of,
)
from etl.ledger.plan_document import with_id
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan, PlanKind
from etl.model.snapshot import Ledger
from tests.builders import changed, plain_plan, plain_snapshot

LOG = TopicPartition("clicks", 0)
HERE = plain_snapshot({LOG: (0, 100)}, time_zone="Asia/Tokyo")


def plan_in(zone: str | None, number: int, start: int, until: int, **changes: object) -> Plan:
    plan = plain_plan(
        number, ranges=(OffsetRange(LOG, start, until),), loaded_until={LOG: until}, time_zone=zone
    )
    return with_id(changed(plan, **changes))


def test_the_conf_comes_first_then_what_spark_was_configured_with_then_utc() -> None:
    conf, configured = {TIME_ZONE: "Europe/Berlin"}, {TIME_ZONE: "Asia/Tokyo"}
    found = [
        time_zone_of(conf, configured),
        time_zone_of({}, configured),
        time_zone_of({TIME_ZONE: ""}, {}),
    ]
    assert [(zone.name, zone.source) for zone in found] == [
        ("Europe/Berlin", ZoneSource.CONF),
        ("Asia/Tokyo", ZoneSource.SPARK),
        ("UTC", ZoneSource.DEFAULT),
    ]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("UTC", "Etc/UTC", True),
        ("UTC", "+00:00", True),
        ("Z", "GMT", True),
        ("+09:00", "UTC+9", True),
        ("Asia/Tokyo", "Asia/Tokyo", True),
        ("UTC", "Europe/London", False),
        ("+09:00", "-09:00", False),
        ("Asia/Tokyo", "Asia/Seoul", False),
    ],
)
def test_names_of_one_zone_are_compared_by_what_they_mean(
    one: str, other: str, is_same: bool
) -> None:
    assert is_same_zone(one, other) is is_same


@pytest.mark.parametrize(
    ("zone", "seconds_east"),
    [
        ("+09:00", 32_400),
        ("-03:30", -12_600),
        ("GMT+2", 7_200),
        ("UTC", 0),
        ("Etc/UTC", 0),
        ("Asia/Tokyo", 32_400),
    ],
)
def test_a_process_with_the_local_zone_has_the_clock_of_sparks_zone(
    zone: str, seconds_east: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", local_zone(zone))
        time.tzset()
        found = time.localtime(0).tm_gmtoff
    time.tzset()
    assert found == seconds_east


def test_a_plan_stored_under_another_time_zone_is_executed_under_that_of_the_run() -> None:
    plan = plan_in("UTC", 1, 0, 10)
    snapshot = replace(HERE, ledger=Ledger(newest=plan))
    [sentence] = describe_time_zones(plan, snapshot)
    assert "is executed under the time zone Asia/Tokyo, and it was stored under UTC" in sentence
    executed = in_time_zone(plan, snapshot)
    assert executed.origin.time_zone == "Asia/Tokyo"
    assert executed.id == with_id(executed).id == plan.id


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_the_same_zone_and_a_plan_from_before_zones_were_kept_are_no_news(zone: str | None) -> None:
    before, plan = plan_in(zone, 1, 0, 10), plan_in("Asia/Tokyo", 2, 10, 20)
    assert not [*describe_time_zones(plan, replace(HERE, ledger=Ledger(newest=before)))]
    assert not [*describe_time_zones(before, replace(HERE, ledger=Ledger(newest=before)))]


def test_the_first_plan_with_rows_after_a_change_of_the_time_zone_is_reported() -> None:
    snapshot = replace(HERE, ledger=Ledger(newest=plan_in("UTC", 1, 0, 10)))
    [sentence] = describe_time_zones(plan_in("Asia/Tokyo", 2, 10, 20), snapshot)
    assert "the plan before it was made under UTC" in sentence
    assert not [*describe_time_zones(plan_in("Asia/Tokyo", 2, 10, 20, ranges=()), snapshot)]


def test_a_replay_is_reported_by_the_plans_that_made_the_present_rows() -> None:
    first, second = plan_in("UTC", 1, 0, 10), plan_in("Europe/Berlin", 2, 10, 20)
    again = plan_in("Asia/Tokyo", 3, 0, 10, kind=PlanKind.REPLAY)
    snapshot = replace(HERE, ledger=Ledger(newest=again))
    wanted = plan_in("Asia/Tokyo", 4, 5, 15, kind=PlanKind.REPLAY)
    of_third = plan_in("Asia/Tokyo", 4, 0, 10, kind=PlanKind.REPLAY)
    plans = [first, second, again]
    [sentence] = describe_replaced_time_zones(wanted, plans, snapshot)
    assert "plan 2, whose rows it replaces, was made under Europe/Berlin" in sentence
    assert len(list(describe_replaced_time_zones(wanted, [first, second], snapshot))) == 2
    assert not list(describe_replaced_time_zones(of_third, plans, snapshot))


def test_a_replay_of_rows_without_their_plans_is_reported_by_the_plan_before_it() -> None:
    before, wanted = (
        plan_in("UTC", 8, 50, 60),
        plan_in("Asia/Tokyo", 9, 0, 10, kind=PlanKind.REPLAY),
    )
    snapshot = replace(HERE, ledger=Ledger(newest=before))
    [sentence] = describe_replaced_time_zones(wanted, [before], snapshot)
    assert "the plan before it was made under UTC" in sentence
