"""Partitions of other owners are left alone: each decision, and runs beside other owners."""

from __future__ import annotations

from typing import Any

import pytest

from etl.decide.partition_owners import (
    UNASSIGNED,
    foreign_consumers,
    leave_to_owners,
    owners_to_wait_for,
    reject_owned_ranges,
    reject_partitions_of_other_members,
)
from etl.errors import Owned, SettingsError
from etl.ledger.owner_nodes import DriverNode, OwnerNode, parse_owner, render_owner
from etl.model.partitions import MemberAssignment, Membership, TopicPartition
from etl.model.plans import OffsetRange
from etl.model.snapshot import Snapshot
from etl.report.describe import describe_by_owner
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.sections import Settings
from tests.builders import plain_plan, plain_settings, plain_snapshot, with_facts
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import Outside
from tests.fakes.stories import At, crash_at, new_report, once
from tests.fakes.world import Crash, FakeWorld, When

LOGS = [TopicPartition("clicks", p) for p in range(3)]
A, B, C = LOGS
FOREIGN = "group_host-1-0"


def settings_of(**group: Any) -> Settings:
    return plain_settings(group=group)


def snapshot_of(owners: dict[TopicPartition, str] | None = None, *live: str) -> Snapshot:
    offsets = dict.fromkeys(LOGS, (0, 1))
    return plain_snapshot(offsets, owners=owners or {}, live_consumers=live)


def driver_of(pipeline: str) -> str:
    return render_owner("group", OwnerNode(pipeline, DriverNode("h-1", 7, "99", "run-0"))).decode()


# -- the name of a driver as an owner


@pytest.mark.parametrize("started", [None, "812"])
@pytest.mark.parametrize("pids", [None, "0a1b2c3d-4026531836"])
@pytest.mark.parametrize("host", ["h", "h-1.example", "fe80::1"])
def test_a_driver_is_a_thread_of_its_group_and_is_known_again(
    host: str, pids: str | None, started: str | None
) -> None:
    owner = OwnerNode("clicks-2.x", DriverNode(host, 7, started, "20260131T000000-a1b2c3", pids))
    thread = render_owner("my_group-1", owner).decode()
    assert thread.startswith("my_group-1_") and thread.rpartition("-")[2] == "0", (
        "consumer id, last hyphen, number of the thread"
    )
    assert parse_owner("my_group-1", thread) == owner
    assert parse_owner("my_group", thread) is None


@pytest.mark.parametrize(
    "owner",
    [
        "",
        "group_host-1795173895653-59986c35-0",
        "group_etl:clicks:run:0:9:h-0",
        "group_etl:clicks:run:4294967296:9:h-0",
        "group_etl:clicks:run:7:9:h-one",
        "group_etl:clicks:run:7:9:h",
        "group_etl:clicks:run:7:h-0",
        "etl:clicks:run:7:9:h-0",
        "group_etl:clicks:run:٧:9:h-0",
    ],
)
def test_other_owners_are_no_drivers_of_ours(owner: str) -> None:
    assert parse_owner("group", owner) is None


# -- decisions


def test_without_consumers_and_owners_no_partition_is_left_out() -> None:
    assert leave_to_owners(snapshot_of(), settings_of()) == snapshot_of()


@pytest.mark.parametrize("on_owned", ["fail", "wait", "skip"])
def test_a_live_group_is_refused_and_named_and_not_waited_for(on_owned: str) -> None:
    settings = settings_of(on_owned=on_owned)
    snapshot = snapshot_of({B: FOREIGN}, "group_host-1", "group_host-2")
    assert owners_to_wait_for(snapshot, settings) == {}
    with pytest.raises(Owned, match="group_host-1, group_host-2"):
        leave_to_owners(snapshot, settings)


@pytest.mark.parametrize("on_owned", ["fail", "wait"])
def test_an_owned_partition_is_refused_and_named(on_owned: str) -> None:
    with pytest.raises(Owned, match="owned by group_host-1-0") as caught:
        leave_to_owners(snapshot_of({B: FOREIGN}), settings_of(on_owned=on_owned))
    assert caught.value.where == {"topic": "clicks", "partition": 1}


@pytest.mark.parametrize("group", [{"on_owned": "skip"}, {"on_active_members": "skip"}])
def test_owned_partitions_are_left_out_and_the_rest_is_read(group: dict[str, str]) -> None:
    live = ("group_host-1",) if "on_active_members" in group else ()
    left = leave_to_owners(
        with_facts(snapshot_of({B: FOREIGN}, *live), leaderless=frozenset({B})),
        settings_of(**group),
    )
    assert (set(left.readable), left.owners, left.leaderless) == ({A, C}, {B: FOREIGN}, frozenset())


def test_only_under_wait_is_an_owner_waited_for() -> None:
    owned = snapshot_of({B: FOREIGN})
    assert owners_to_wait_for(owned, settings_of(on_owned="wait")) == {B: FOREIGN}
    for group in ({}, {"on_owned": "skip"}, {"on_owned": "wait", "on_active_members": "skip"}):
        assert owners_to_wait_for(owned, settings_of(**group)) == {}


def test_a_driver_of_this_pipeline_is_no_other_owner_and_one_of_another_pipeline_is() -> None:
    assert leave_to_owners(snapshot_of({B: driver_of("clicks")}), settings_of()) == snapshot_of()
    with pytest.raises(Owned, match="etl:other"):
        leave_to_owners(snapshot_of({B: driver_of("other")}), settings_of())


@pytest.mark.parametrize(
    ("instance_id", "consumer"),
    [
        (None, driver_of("clicks").removesuffix("-0")),
        ("etl", driver_of("clicks").removesuffix("-0")),
        ("etl", "group_etl"),
        ("a-1", "group_a-1"),
    ],
)
def test_our_own_registration_is_no_live_consumer_and_its_claims_have_no_other_owner(
    instance_id: str | None, consumer: str
) -> None:
    """A killed member stays registered until its session ends."""
    settings = settings_of(mode="join", join={"instance_id": instance_id})
    snapshot = snapshot_of({B: f"{consumer}-3"}, consumer)
    assert leave_to_owners(snapshot, settings) == with_facts(snapshot, owners={})
    with pytest.raises(Owned, match=r"group: group_host-1\. "):
        leave_to_owners(with_facts(snapshot, live_consumers=(consumer, "group_host-1")), settings)


@pytest.mark.parametrize(
    "settings",
    [
        settings_of(join={"instance_id": "etl"}),
        settings_of(mode="join"),
        settings_of(mode="join", join={"instance_id": "etl-1"}),
        settings_of(mode="join", join={"instance_id": "et"}),
    ],
)
def test_a_consumer_of_another_name_is_another_owner(settings: Settings) -> None:
    with pytest.raises(Owned, match="group_etl"):
        leave_to_owners(snapshot_of({}, "group_etl"), settings)


def test_a_member_leaves_other_assignments_and_respects_live_consumers_of_kafkas_group() -> None:
    share = MemberAssignment("group_etl", Membership.ZOOKEEPER, "range", None, frozenset({A}))
    snapshot = with_facts(snapshot_of({B: FOREIGN}, "group_host-1", "client-1"), share=share)
    left = leave_to_owners(snapshot, settings_of(mode="join"))
    assert (set(left.readable), left.owners) == (
        {A},
        {B: FOREIGN, C: "another member of the group"},
    )
    in_kafka = with_facts(snapshot, live_in_kafka=("client-1",))
    with pytest.raises(Owned, match="Kafka's own group of this name: client-1") as caught:
        leave_to_owners(in_kafka, settings_of(mode="join"))
    assert caught.value.exit_code == 4
    assert (
        leave_to_owners(in_kafka, settings_of(mode="join", on_active_members="skip")).owners
        == left.owners
    )


def joining(membership: Membership, **group: Any) -> Settings:
    storage = "kafka" if membership is Membership.COORDINATOR else "zookeeper"
    return plain_settings(group={"mode": "join", "offsets_storage": storage, **group})


STATIC = "driver-6f1a0c52-0d3b-4a51-9f0e-0123456789ab at 10.0.0.7"


@pytest.mark.parametrize(
    ("membership", "live"),
    [
        (Membership.ZOOKEEPER, ()),
        (Membership.COORDINATOR, ()),
        (Membership.COORDINATOR, ("m-2 at 10.0.0.8",)),
    ],
)
def test_a_partition_without_a_known_member_is_not_reported_as_left_to_one(
    membership: Membership, live: tuple[str, ...]
) -> None:
    settings = joining(membership)
    share = MemberAssignment("m-1", membership, "range", 3, frozenset({A}))
    found = with_facts(snapshot_of({B: "m-2 at 10.0.0.8"}, *live), live_in_kafka=live, share=share)
    left = leave_to_owners(found, settings)
    assert (left.owners, set(left.readable)) == ({B: "m-2 at 10.0.0.8", C: UNASSIGNED}, {A})
    assert list(describe_by_owner(left.owners)) == [
        "clicks 1: owned by m-2 at 10.0.0.8; left out",
        "clicks 2: assigned to no known member of the group; a run reads it after the next "
        "rebalance",
    ]
    with pytest.raises(Owned, match="The partition is assigned to no known member of the group"):
        reject_partitions_of_other_members([C], left, settings)


@pytest.mark.parametrize(
    ("consumer", "is_ours"),
    [(STATIC, True), ("driver-1 at 10.0.0.7", False), (f"x{STATIC}", False)],
)
def test_the_static_member_of_this_pipeline_is_no_other_consumer_between_its_runs(
    consumer: str, is_ours: bool
) -> None:
    named = joining(Membership.COORDINATOR, join={"instance_id": "driver"})
    unnamed = joining(Membership.COORDINATOR)
    assert foreign_consumers([consumer], named) == (() if is_ours else (consumer,))
    assert foreign_consumers([consumer], unnamed) == (consumer,)


def test_a_stored_plan_over_partitions_of_other_owners_is_rejected() -> None:
    plan = plain_plan(ranges=(OffsetRange(A, 0, 1),), loaded_until={A: 1})
    reject_owned_ranges(plan, snapshot_of({B: FOREIGN}))
    with pytest.raises(Owned, match=r"Plan 1 is stored and must be executed first\.") as caught:
        reject_owned_ranges(plan, snapshot_of({A: FOREIGN}))
    assert caught.value.where == {"topic": "clicks", "partition": 0}


def test_each_owner_is_reported_once_per_topic() -> None:
    many = {TopicPartition("clicks", p): FOREIGN for p in range(1007)}
    assert list(describe_by_owner({**many, TopicPartition("other", 3): "x", A: "x"})) == [
        "clicks 0: owned by x; left out",
        f"clicks 1, 2, 3, 4, 5 and 1,001 more: owned by {FOREIGN}; left out",
        "other 3: owned by x; left out",
    ]


# -- the story


def outside_of(**changes: Any) -> Outside:
    outside = Outside({partition: FakeLog(4) for partition in LOGS})
    for name, value in changes.items():
        setattr(outside, name, value)
    return outside


def run(outside: Outside, settings: Settings, at: At = lambda step, when: None) -> Report:
    report = new_report()
    ingest(FakeWorld(outside, settings, at), settings, report)
    return report


SKIP, BEFORE = settings_of(on_owned="skip"), When.BEFORE


@pytest.mark.parametrize("group", [{}, {"on_owned": "wait"}, {"on_owned": "skip"}])
def test_a_stored_plan_waits_for_the_owner_of_a_log_that_it_reads(group: dict[str, str]) -> None:
    outside, settings = outside_of(), settings_of(**group)
    with pytest.raises(Crash):
        run(outside, settings, crash_at("fetch", When.BEFORE))
    stored = dict(outside.plans)
    outside.owners[B] = FOREIGN
    with pytest.raises(Owned, match=FOREIGN):
        run(outside, settings)
    assert outside.plans == stored and outside.table is None
    outside.owners = {
        partition: owner for partition, owner in outside.owners.items() if owner != FOREIGN
    }
    assert Outcome.PLAN_RESUMED in dict(run(outside, settings).outcomes)
    assert outside.owners == {} and len(outside.rows()) == 12


@pytest.mark.parametrize("group", [{}, {"on_owned": "skip"}])
def test_an_owner_that_comes_before_the_claim_stops_the_run_and_the_plan_stays(
    group: dict[str, str],
) -> None:
    outside, settings = outside_of(), settings_of(**group)
    with pytest.raises(Owned, match=FOREIGN):
        run(outside, settings, once("claim", BEFORE, lambda: outside.owners.update({C: FOREIGN})))
    assert (set(outside.plans), outside.table, outside.owners) == ({1}, None, {C: FOREIGN})
    outside.owners.clear()
    assert Outcome.PLAN_RESUMED in dict(run(outside, settings).outcomes)
    assert len(outside.rows()) == 12


@pytest.mark.parametrize(("mode", "claimed"), [("observe", []), ("claim", LOGS)])
def test_a_run_claims_the_partitions_that_it_reads_unless_it_only_observes(
    mode: str, claimed: list[TopicPartition]
) -> None:
    outside, seen = outside_of(), list[TopicPartition]()
    run(outside, settings_of(mode=mode), once("fetch", BEFORE, lambda: seen.extend(outside.owners)))
    assert (seen, outside.owners) == (claimed, {})


def test_after_the_owner_is_gone_the_run_starts_at_the_offset_that_it_left() -> None:
    outside = outside_of(owners={B: FOREIGN})

    def leave() -> None:
        outside.owners.clear()
        outside.move_offset(B, 3)

    run(outside, settings_of(on_owned="wait"), once("wait for owners", BEFORE, leave))
    assert [offset for partition, offset in outside.rows() if partition == B] == [3], (
        "from where the owner stopped"
    )


def test_claims_are_given_back_when_a_run_fails() -> None:
    outside = outside_of()

    def fail() -> None:
        raise SettingsError("something")

    with pytest.raises(SettingsError):
        run(outside, settings_of(), once("append", BEFORE, fail))
    assert outside.owners == {}
