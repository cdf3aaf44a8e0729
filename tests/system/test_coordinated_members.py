"""The sentences about members of a group against a real coordinator."""

from __future__ import annotations

from functools import partial

import pytest

from etl.io.brokers.member_state import MemberTerms
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import HOST
from tests.conftest import TopicFactory
from tests.fakes.member_contract import PARTITIONS, MemberContract, Stage, new_group
from tests.traffic.modern import grow_topic


class TestMembers(MemberContract):
    """The contract."""

    @pytest.fixture
    def stage(self, cluster: EmbeddedCluster, topic: TopicFactory) -> Stage:
        name = topic(PARTITIONS)
        return stage_on(cluster, name)


def stage_on(cluster: EmbeddedCluster, topic: str) -> Stage:
    terms = MemberTerms(
        new_group(), (topic,), session_timeout_s=6, rebalance_timeout_s=20, join_timeout_s=60
    )
    return Stage([(HOST, cluster.brokers[0].port)], topic, terms, grow=partial(grow_topic, cluster))
