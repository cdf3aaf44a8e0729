"""The sentences on claims that hold for the fake world of a run as for the real one; each suite
brings a `stage` fixture of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pytest

from etl.errors import Owned
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan
from etl.settings.sections import Settings
from tests.builders import plain_plan, plain_settings

GROUP, PIPELINE = "group", "clicks"
LOGS = [TopicPartition("clicks", 0), TopicPartition("clicks", 1), TopicPartition("other", 0)]
FOREIGN = "group_host-1-0"


def settings_of(**group: Any) -> Settings:
    return plain_settings(
        pipeline=PIPELINE,
        source={"topics": ["clicks", "other"], "bootstrap_servers": "127.0.0.1:1"},
        group={"id": GROUP, **group},
        ledger={"lock_timeout_s": 0},
    )


def plan_of(*partitions: TopicPartition) -> Plan:
    """Two ranges of each log."""
    ranges = tuple(
        OffsetRange(partition, start, start + 1) for partition in partitions for start in range(2)
    )
    return plain_plan(ranges=ranges, loaded_until={partition: 2 for partition in partitions})


class Stage(Protocol):
    """One ZooKeeper, real or not."""

    def world(self, settings: Settings) -> Any:
        """A driver's world, on a session of its own; every one is a driver of the same run."""

    def owners(self) -> Mapping[TopicPartition, str]:
        """Who owns which log now."""

    def own(self, partition: TopicPartition) -> None:
        """Another client, `FOREIGN`, becomes the owner."""


class ClaimContract:
    """What `ingest` may rely on."""

    def test_what_a_plan_reads_is_ours_inside_and_nobodys_afterwards(self, stage: Stage) -> None:
        world = stage.world(settings_of())
        with world.claiming(plan_of(*LOGS[1:])):
            owners = stage.owners()
            assert set(owners) == set(LOGS[1:])
            assert all(
                owner.startswith("group_etl:clicks:run-1:") and owner.endswith("-0")
                for owner in owners.values()
            )
        assert stage.owners() == {}

    def test_under_observe_and_without_ranges_nothing_is_claimed(self, stage: Stage) -> None:
        with (
            stage.world(settings_of(mode="observe")).claiming(plan_of(*LOGS)),
            stage.world(settings_of()).claiming(plan_of()),
        ):
            assert stage.owners() == {}

    @pytest.mark.parametrize("owned", LOGS, ids=str)
    def test_with_one_owned_log_none_is_claimed_and_its_owner_stays(
        self, stage: Stage, owned: TopicPartition
    ) -> None:
        stage.own(owned)
        with (
            pytest.raises(Owned, match=f"owned by {FOREIGN}") as caught,
            stage.world(settings_of()).claiming(plan_of(*LOGS)),
        ):
            pytest.fail("it is owned")
        assert caught.value.where == {"topic": owned.topic, "partition": owned.partition}
        assert stage.owners() == {owned: FOREIGN}

    def test_owners_of_logs_that_the_plan_does_not_read_are_no_trouble(self, stage: Stage) -> None:
        stage.own(LOGS[0])
        with stage.world(settings_of()).claiming(plan_of(*LOGS[1:])):
            assert len(stage.owners()) == 3
        assert stage.owners() == {LOGS[0]: FOREIGN}

    def test_claims_are_given_back_when_the_run_fails(self, stage: Stage) -> None:
        with pytest.raises(ZeroDivisionError), stage.world(settings_of()).claiming(plan_of(*LOGS)):
            1 / 0  # noqa: B018
        assert stage.owners() == {}

    def test_claims_of_an_earlier_try_of_the_run_are_taken_over_and_not_released_by_that_try(
        self, stage: Stage
    ) -> None:
        first, second = (
            stage.world(settings_of()).claiming(plan_of(*LOGS)),
            stage.world(settings_of()).claiming(plan_of(*LOGS[:2])),
        )
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(stage.owners()) == set(LOGS[:2])
        second.__exit__(None, None, None)
        assert stage.owners() == {}

    def test_an_owner_who_stays_is_named_by_who_waits(self, stage: Stage) -> None:
        stage.own(LOGS[2])
        world = stage.world(settings_of())
        world.wait_for_owners(LOGS[:2])
        with pytest.raises(Owned, match=f"owned by {FOREIGN}") as caught:
            world.wait_for_owners(LOGS)
        assert caught.value.where == {"topic": "other", "partition": 0}
