"""`python -m tests.groups.lone_member PORT GROUP TOPIC PROTOCOL INSTANCE`: a member of ours that
prints each assignment, for tests that kill it.

A line for each assignment: the number of its partitions, its generation, and how often the
membership was lost so far.
"""

from __future__ import annotations

import sys
import time

from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.model.partitions import GroupProtocol
from etl.testkit.server_process import HOST


def main(port: str, group: str, topic: str, protocol: str, instance: str) -> None:
    """Follow the group until the process ends."""
    terms = MemberTerms(
        group,
        (topic,),
        instance_id=instance or None,
        session_timeout_s=6,
        rebalance_timeout_s=10,
        join_timeout_s=90,
    )
    member = CoordinatedMember([(HOST, int(port))], terms, protocol=GroupProtocol(protocol))
    share = member.join()
    while True:
        print(len(share.partitions), share.generation, member.statistics.lost, flush=True)
        while member.is_current:
            time.sleep(0.05)
        share = member.rejoin()


if __name__ == "__main__":
    main(*sys.argv[1:])
