"""The laws of members of a group on a real coordinator; `long`: those with a static member among
others, which wait for its sessions.
"""

from __future__ import annotations

from functools import partial

import pytest

from etl.io.brokers.member_state import MemberTerms
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import HOST
from tests.conftest import TopicFactory
from tests.fakes.member_contract import PARTITIONS, MemberContract, Stage, new_group
from tests.traffic.modern import grow_topic


@pytest.fixture
def stage(cluster: EmbeddedCluster, topic: TopicFactory) -> Stage:
    name = topic(PARTITIONS)
    terms = MemberTerms(
        new_group(), (name,), session_timeout_s=6, rebalance_timeout_s=20, join_timeout_s=60
    )
    return Stage([(HOST, cluster.brokers[0].port)], name, terms, grow=partial(grow_topic, cluster))


class TestMembers:
    """The laws of members that come and go."""

    test_alone = MemberContract.test_alone_in_a_group_a_member_owns_every_log_and_so_does_the_next_one_after_its_leave
    test_two = (
        MemberContract.test_two_members_divide_the_logs_and_one_that_leaves_gives_all_to_the_other
    )
    test_a_static_one = (
        MemberContract.test_a_static_member_that_returns_has_its_logs_and_no_other_member_rebalances
    )


@pytest.mark.long
class TestStaticMembers(MemberContract):
    """All of them."""
