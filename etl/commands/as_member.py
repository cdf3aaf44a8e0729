"""A command that moves the group's offsets is a member of the group while it looks and stores its
plan, where runs are members.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from etl.decide.group_ownership import joins_for_commands
from etl.model.partitions import Share
from etl.run.services import Services
from etl.settings.sections import Settings


@contextlib.contextmanager
def as_member(world: Services, settings: Settings) -> Iterator[Share | None]:
    """Inside, what the share names is ours; None: commands by this conf are no members. Raises as
    `Member.join`.
    """
    member = world.member() if joins_for_commands(settings) else None
    if member is None:
        yield None
        return
    try:
        yield member.join()
    finally:
        member.leave()
