"""What a run asks of its membership in a group, whichever kind of group it is, and what it may rely
on.
"""

from __future__ import annotations

from typing import Protocol

from etl.model.partitions import RebalanceStatistics, Share


class Member(Protocol):
    """One member of a group, from before it has joined until it has left.

    A run joins, reads the group's offsets, plans, hands over and only then fetches. Up to the
    hand-over it owns what `join` or `rejoin` gave last, for as long as `is_current`; behind the
    hand-over nothing of the plan depends on membership any more.
    """

    def join(self) -> Share:
        """Register, and rebalance until the group has settled.

        The share may be empty. Raises Owned where it does not settle in time; MembershipLost where
        the registration ends meanwhile; SettingsError where the group and the conf do not fit
        together. Then nothing of ours is registered any more, and nobody is stranded.
        """

    def rejoin(self) -> Share:
        """Let go, and settle again: after `is_current` was False, or a hand-over was void. Raises
        as `join`.
        """

    @property
    def is_current(self) -> bool:
        """Whether the last share still stands as far as anybody told us: no rebalance is called
        for, and the membership is alive.

        A hint: only the hand-over's own check decides.
        """

    def follow(self) -> None:
        """Behind the stored plan: from now on let go whenever that is asked for, and take the new
        share in the background. Never raises.

        Not so a member that commits behind the append, where the group waits for each by itself: it
        holds its share until it leaves, or for as long as the group waits.
        """

    def leave(self) -> None:
        """Let go, and be no member any more. May be called again and again, and before `join`;
        never raises.
        """

    @property
    def statistics(self) -> RebalanceStatistics:
        """What it cost so far."""
