"""What a consumer reads as a member of its group: joined with a poll, divided anew with a poll,
left at the end.

    a poll, not joined yet, or lost     join; what the share gives begins where the group is
    a poll, the group wants logs back   commit where that is by itself, tell `revoked`, forget what came of them, let go; then as above
    a poll, the group took us for gone  tell `lost`, forget everything that came; join again
    no poll for too long                leave; the next poll finds that it lost everything

A commit names the share by which its logs are ours, so one that comes too late moves nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from etl.errors import MembershipLost, NotAssigned, SessionLost, SettingsError
from etl.model.partitions import BrokerPartition, Share
from etl.streams.groups import Group, Listener, Subscription
from etl.streams.kept import Kept
from etl.streams.members import GroupMember
from etl.streams.opened import Opened
from etl.streams.positions import Positions

_TICK_S = 0.25
_COMMITS_MAX = 3
"""How often one is tried where only the epoch is another one by now."""


class Subscribed:
    """The group's side of one consumer, which calls it in one thread at a time; only what watches
    over its polls is another one.
    """

    def __init__(self, opened: Opened, positions: Positions) -> None:
        self._group, self._kept, self._open_member, self._at = (
            opened.group,
            opened.kept,
            opened.open_member,
            positions,
        )
        self._wanted: Subscription | None = None
        self._commits_by_itself = (
            opened.group is not None and opened.group.auto_commit_s is not None
        )
        self._listener = Listener()
        self._member: GroupMember | None = None
        self._one_at_a_time = threading.RLock()
        """Whoever touches the member: this consumer's thread, also within a listener of its, or who
        watches over it.
        """
        self._is_left_behind = False
        """Whether it left because nobody polled."""
        self._polled_at = self._committed_at = time.monotonic()
        self._called_since: float | None = None
        self._watcher: threading.Thread | None = None
        self._ended = threading.Event()

    @property
    def is_subscribed(self) -> bool:
        """Whether the group says what is read."""
        return self._wanted is not None

    @property
    def threads(self) -> Mapping[BrokerPartition, int] | None:
        """Which of our threads owns each log; None where the group knows none."""
        return self._member.threads if self._member else None

    def subscribe(self, wanted: Subscription, listener: Listener | None) -> None:
        """With the next `tend`. Raises SettingsError without a group."""
        if self._open_member is None:
            what = "the consumer has no group, and only members of one subscribe"
            raise SettingsError(what, key="group", check="Consumer(..., group=...), or assign()")
        if self._wanted is None and self._at.rotation.assigned:
            what = "partitions are assigned to this consumer by hand"
            raise SettingsError(what, check="assign(()), or unsubscribe(), before it subscribes")
        self.unsubscribe()
        self._wanted, self._listener, self._polled_at = (
            wanted,
            listener or Listener(),
            time.monotonic(),
        )
        self._ended = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, args=(self._ended,), name="streams: polls", daemon=True
        )
        self._watcher.start()

    def unsubscribe(self) -> None:
        """Let go of everything and leave."""
        if self._wanted is None:
            return
        self._ended.set()
        try:
            if self._watcher is not None:
                self._watcher.join()
            if self._is_left_behind:
                self.lose()
            else:
                self.let_go(frozenset(self._at.rotation.assigned))
        finally:
            self._forget()
            self._wanted = None

    def commit_by_itself_no_more(self) -> None:
        """The program failed amid what it was given: its next start is to be given it again."""
        self._commits_by_itself = False

    def tend(self) -> None:
        """Before each poll hands out anything: join, let go, take, commit; whatever is due."""
        if self._wanted is None or self._group is None:
            return
        with self._one_at_a_time:
            try:
                self._tend(self._group, self._wanted)
            finally:  # what it took the group to settle is none of the program's time
                self._polled_at, self._called_since = time.monotonic(), None

    def commit(self, offsets: Mapping[BrokerPartition, int]) -> None:
        """As a member does while it is one, else as anybody. Raises MembershipLost, NotAssigned for
        a log that is another member's.
        """
        if self._kept is None:
            raise SettingsError(
                "the consumer has no group, so nobody keeps its offsets",
                key="group",
                check="Consumer(..., group=...)",
            )
        if self._wanted is None:
            self._kept.commit(offsets, None)
            return
        with self._one_at_a_time:
            self._commit_as_member(self._kept, offsets)

    def _commit_as_member(self, kept: Kept, offsets: Mapping[BrokerPartition, int]) -> None:
        member = self._member
        share = None if self._is_left_behind or member is None else member.share
        if share is None or member is None:
            what = (
                "the consumer is no member of its group now, and others may be reading what it read"
            )
            check = "how long this program takes between two polls; the next one joins again and begins where the group is"
            raise MembershipLost(what, check=check)
        for log in offsets:
            if log not in self._at.rotation.assigned:
                what = "the partition is not in this consumer's share of the group"
                raise NotAssigned(what, **log.place, check="what the listener was told")
        for left in reversed(range(_COMMITS_MAX)):
            try:
                kept.commit(offsets, share)
                return
            except MembershipLost:
                renewed = member.renewed(share) if left else None
                if renewed is None:
                    raise
                share = renewed

    # What becomes of a share

    def let_go(self, logs: frozenset[BrokerPartition]) -> None:
        """These are about to be let go, and still ours."""
        mine = logs.intersection(self._at.rotation.assigned)
        if not mine:
            return
        self._at.stop(mine)
        try:
            if self._commits_by_itself:
                if offsets := {
                    log: offset for log, offset in self._at.done().items() if log in mine
                }:
                    self.commit(offsets)
            self._listener.revoked(mine)
        finally:
            self._at.assign([log for log in self._at.rotation.assigned if log not in mine])

    def lose(self) -> None:
        """Nothing is ours any more, since nobody knows when."""
        lost = frozenset(self._at.rotation.assigned)
        self._at.assign(())
        if lost:
            self._listener.lost(lost)

    def _tend(self, group: Group, wanted: Subscription) -> None:
        if self._is_left_behind:
            self._forget()
            self.lose()
        if self._member is not None:
            self._member.look_after()
            if self._member.is_called:
                self._settle(self._member)
        if self._member is None:
            self._join(wanted)
        self._commit_in_time(group)

    def _join(self, wanted: Subscription) -> None:
        if self._open_member is not None:
            member = self._open_member(wanted, self)
            self._take(member.join(), member)

    def _settle(self, member: GroupMember) -> None:
        try:
            share = member.settle()
        except SessionLost:
            self._forget()
            self.lose()
            return
        except BaseException:
            self._forget()
            self.lose()
            raise
        self._take(share, member)

    def _take(self, share: Share, member: GroupMember) -> None:
        self._member = member
        before = frozenset(self._at.rotation.assigned)
        self._at.assign(sorted(share.logs))
        if taken_away := before - share.logs:
            self._listener.lost(taken_away)
        if new := share.logs - before:
            self._listener.assigned(new)

    def _forget(self) -> None:
        member, self._member, self._is_left_behind = self._member, None, False
        if member is not None:
            member.leave()

    def _commit_in_time(self, group: Group) -> None:
        if (
            group.auto_commit_s is not None
            and time.monotonic() >= self._committed_at + group.auto_commit_s
        ):
            self._committed_at = time.monotonic()
            if offsets := self._at.done():
                self.commit(offsets)

    # Who is not polled

    def _watch(self, ended: threading.Event) -> None:
        """The other thread: a member that nobody polls is in everybody's way."""
        while not ended.wait(_TICK_S):
            if self._one_at_a_time.acquire(blocking=False):
                try:
                    self._leave_if_not_polled(time.monotonic())
                finally:
                    self._one_at_a_time.release()

    def _leave_if_not_polled(self, now: float) -> None:
        member, group = self._member, self._group
        if member is None or group is None or self._is_left_behind:
            return
        self._called_since = (self._called_since or now) if member.is_called else None
        is_overdue = (
            self._called_since is not None and now - self._called_since >= group.rebalance_timeout_s
        )
        if is_overdue or now - self._polled_at >= group.max_poll_interval_s:
            self._is_left_behind = True
            member.leave()
