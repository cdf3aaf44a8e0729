"""What a run may join, by its conf and by what the brokers speak."""

from __future__ import annotations

from typing import Any

import pytest

from etl.kafka.kafka_broker_type import KafkaProtocol
from etl.kafka.request_values import SupportedMembership
from etl.model.partitions import GroupProtocol, OffsetsStorage
from etl.run.live_services import session_of, unspoken
from etl.settings.choices import OwnershipMode
from etl.settings.sections import GroupSettings, JoinSettings
from tests.builders import with_keys
from tests.fakes.stories import settings_of


def spoken_by(release: str) -> SupportedMembership:
    return KafkaProtocol.of_release(release, "us", "here:9092").groups.membership


@pytest.mark.parametrize(
    ("release", "spoken"),
    [
        ("0.8.2", (False, False, False, False)),
        ("0.9", (True, False, False, False)),
        ("0.10.1", (True, True, False, False)),
        ("2.2", (True, True, False, False)),
        ("2.3", (True, True, True, False)),
        ("3.9", (True, True, True, False)),
        ("4.0", (True, True, True, True)),
    ],
)
def test_what_members_of_groups_a_release_understands(
    release: str, spoken: tuple[bool, ...]
) -> None:
    found = spoken_by(release)
    assert (
        found.is_classic,
        found.has_rebalance_timeout,
        found.is_static,
        found.is_consumer,
    ) == spoken and found.release == release


@pytest.mark.parametrize(
    ("release", "keys", "key"),
    [
        ("0.8.2", {}, "group.offsets_storage"),
        ("0.9", {}, None),
        ("3.9", {"join": {"protocol": GroupProtocol.CONSUMER}}, "group.join.protocol"),
        ("4.0", {"join": {"protocol": GroupProtocol.CONSUMER}}, None),
        ("2.2", {"join": {"instance_id": "us"}}, "group.join.instance_id"),
        ("2.3", {"join": {"instance_id": "us"}}, None),
    ],
)
def test_a_key_that_the_brokers_are_too_old_for_is_refused_with_their_release(
    release: str, keys: dict[str, Any], key: str | None
) -> None:
    settings = settings_of()
    joining = {
        "mode": OwnershipMode.JOIN,
        **keys,
        "offsets_storage": OffsetsStorage.KAFKA,
    }
    refusal = unspoken(with_keys(settings, group=joining), spoken_by(release))
    assert (refusal and refusal.where["key"]) == key
    assert (
        refusal is None
        or f"the brokers are Kafka {release}" in refusal.message
        and refusal.exit_code == 2
    )


def test_of_members_in_zookeeper_no_broker_needs_to_know() -> None:
    settings = settings_of()
    assert unspoken(settings, SupportedMembership()) is None
    assert "these brokers have no groups" in str(
        unspoken(
            with_keys(
                settings,
                group={"mode": OwnershipMode.JOIN, "offsets_storage": OffsetsStorage.KAFKA},
            ),
            SupportedMembership(),
        )
    )


def test_a_default_session_timeout_is_within_the_limit_of_the_brokers_release() -> None:
    assert (
        session_of(GroupSettings(id="g"), spoken_by("0.10.0")) == 30
        and session_of(GroupSettings(id="g"), spoken_by("0.10.1")) == 45
    )
    patient = GroupSettings(id="g", join=JoinSettings(session_timeout_s=44))
    assert session_of(patient, spoken_by("0.9")) == 44
