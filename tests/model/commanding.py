"""Commands that set the group's offset, in every interleaving with the other members of the group.

One partition, and a group with other members that own it in turn with us. A command sets our
position forwards past records that are reported as lost, or back over records that no member got;
the next run executes its plan, and reads on as a member. Old consumers keep their position in
memory: the owner of the partition reads on from there, and overwrites the offset without reading
it.

    python -m tests.model.commanding

A command joins the group, reads the offset as the owner, and stores its plan in one step with the
offset (`etl.decide.partition_owners`). The steps of a run between its ownership and its offset
commit, and the crashes of drivers, are `member_offsets`'s; here a run is two steps.

Laws: the table has no record that others read, and others read none twice; records reported as lost
are in neither; and every record before the group's offset is in the table, or others read it, or a
stored plan reports it as lost.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.model.exploring import explored

OTHERS, COMMAND = "others", "command"


class Plan(NamedTuple):
    """A command's: the position is `to`, and skipped records are reported as lost."""

    start: int
    to: int
    version: int
    """Of the offset, as the command saw it."""
    is_handed_over: bool


class Command(NamedTuple):
    """What the command knows once it has looked."""

    offset: int
    version: int


class Left(NamedTuple):
    """How often each thing may still happen."""

    commands: int = 2
    others: int = 2
    runs: int = 2
    lost: int = 1


class Rules(NamedTuple):
    """What the protocol consists of; one that is taken away breaks a law, each in its own test."""

    joins: bool = True
    """The command is the owner when it looks."""
    one_step: bool = True
    """The offset moves as the plan is stored, if the command still owns the partition then; else
    after the plan's execution.
    """
    starts_at_group: bool = True
    """What it passes over begins at the group's offset, not at our last position."""
    leaves_theirs: bool = True
    """It goes back over nothing that others read."""


class State(NamedTuple):
    """Everything at one moment."""

    offset: int = 0
    version: int = 0
    owner: str | None = None
    at: int = 0
    """How far others are, by themselves."""
    position: int = 0
    """Ours, by the last plan in the table."""
    theirs: frozenset[int] = frozenset()
    twice: bool = False
    """Others read something twice."""
    loaded: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    plan: Plan | None = None
    command: Command | None = None
    end: int = 3
    left: Left = Left()
    rules: Rules = Rules()


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    left = s.left
    if s.owner is None and left.others:
        yield (
            "others claim the log",
            s._replace(owner=OTHERS, at=s.offset, left=left._replace(others=left.others - 1)),
        )
    if s.owner == OTHERS:
        yield "others let go", s._replace(owner=None)
        if s.at < s.end:
            yield (
                f"others read {s.at}",
                s._replace(
                    theirs=s.theirs | {s.at},
                    twice=s.twice or s.at in s.theirs,
                    at=s.at + 1,
                    offset=s.at + 1,
                    version=s.version + 1,
                ),
            )
    if s.owner == COMMAND and left.lost:
        yield (
            "the command's session ends",
            s._replace(owner=None, left=left._replace(lost=left.lost - 1)),
        )
    if s.command is None and s.plan is None and left.commands:
        if s.owner is None or not s.rules.joins:
            looked = Command(s.offset, s.version)
            owner = COMMAND if s.rules.joins else s.owner
            yield (
                "a command looks",
                s._replace(
                    owner=owner, command=looked, left=left._replace(commands=left.commands - 1)
                ),
            )
    if s.command is not None:
        yield "the command ends", _ended(s)
        yield from _store(s, s.command)
    if s.plan:
        yield "a run executes the plan", _executed(s, s.plan)
    elif left.runs and s.owner is None and s.command is None and s.offset < s.end:
        read = frozenset(range(s.offset, s.end))
        yield (
            f"a run loads from {s.offset}",
            s._replace(
                loaded=s.loaded | read,
                position=s.end,
                offset=s.end,
                version=s.version + 1,
                left=left._replace(runs=left.runs - 1),
            ),
        )


def _ended(s: State) -> State:
    return s._replace(command=None, owner=None if s.owner == COMMAND else s.owner)


def _store(s: State, knows: Command) -> Iterator[tuple[str, State]]:
    """To any offset that an operator names."""
    start = knows.offset if s.rules.starts_at_group else s.position
    for to in range(s.end + 1):
        back = set(range(to, start))
        if to == start or back & s.loaded or (s.rules.leaves_theirs and back & s.theirs):
            continue
        plan = Plan(start, to, knows.version, s.rules.one_step)
        if not s.rules.one_step:
            yield f"the command stores {to}", _ended(s)._replace(plan=plan)
        elif s.version == knows.version and (s.owner == COMMAND or not s.rules.joins):
            yield (
                f"the command hands {to} over",
                _ended(s)._replace(plan=plan, offset=to, version=s.version + 1),
            )


def _executed(s: State, plan: Plan) -> State:
    """In the table; one that was not handed over moves the offset now, where it is as the command
    saw it.
    """
    lost = (s.lost | set(range(plan.start, plan.to))) - set(range(plan.to, plan.start))
    done = s._replace(plan=None, position=plan.to, lost=frozenset(lost))
    if plan.is_handed_over or s.version != plan.version:
        return done
    return done._replace(offset=plan.to, version=s.version + 1)


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks."""
    promised = set(range(s.plan.start, s.plan.to)) if s.plan else set()
    back = set(range(s.plan.to, s.plan.start)) if s.plan else set()
    if both := s.theirs & s.loaded:
        return f"{sorted(both)} are in the table, and others read them"
    if s.twice:
        return "others read something twice"
    if both := ((s.lost | promised) - back) & (s.theirs | s.loaded):
        return f"{sorted(both)} are reported as lost, and a member has them"
    if gone := set(range(s.offset)) - s.theirs - s.loaded - s.lost - promised:
        return f"{sorted(gone)} are passed, and no member has them"
    return None


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    return explored(start, steps, broken_law)


if __name__ == "__main__":
    states, broken = explore()
    print(f"{states:,} states", broken or "every law holds")
    sys.exit(bool(broken))
