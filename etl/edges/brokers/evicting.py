"""Ends a membership of a driver that is gone: it sleeps, or died, and the group waits for its
session to end.

A coordinator takes the leave of a member from whoever knows its id. From then on nothing that the
driver committed as that member is taken any more, wherever on the way it is.
"""

from __future__ import annotations

import time

from etl.edges.brokers.coordinator_connection import CoordinatorConnection
from etl.errors import Meaning, Refusal
from etl.kafka.messages import LEAVES, ConsumerHeartbeat, MemberIdentity
from etl.model.partitions import BY_COORDINATOR, Share

_PAUSE_S = 0.2
_NO_SUCH_GROUP = 69
"""Of this protocol (GROUP_ID_NOT_FOUND): so nobody is a member of it."""


def end_membership(
    connection: CoordinatorConnection, group: str, share: Share, *, within_s: float
) -> None:
    """Leave in the name of this share's member; nothing where it is none. Raises BrokerUnreachable,
    and what it is refused with.
    """
    deadline = time.monotonic() + within_s
    while refusal := _leave(connection, group, share):
        if refusal.meaning is Meaning.UNKNOWN_MEMBER or refusal.code == _NO_SUCH_GROUP:
            return
        if not refusal.is_retriable or time.monotonic() + _PAUSE_S > deadline:
            raise refusal.error(
                "end the membership of a run that is gone", group=group, broker=connection.address
            )
        connection.forget()
        time.sleep(_PAUSE_S)


def _leave(connection: CoordinatorConnection, group: str, share: Share) -> Refusal | None:
    if share.strategy == BY_COORDINATOR:
        beat = ConsumerHeartbeat(group, share.member_id, LEAVES, None, -1, (), None)
        return connection.ask(lambda dialect: dialect.consumer_heartbeat(beat)).refusal
    gone = MemberIdentity(group, share.member_id, None, -1)
    return connection.ask(lambda dialect: dialect.leave_group(gone))
