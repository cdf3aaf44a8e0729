"""Offsets that an operator sets, forwards and backwards, in every interleaving with two drivers:
crashes, lost sessions, a growing partition, and a ledger restored from an old copy.

One partition, one table. A reset is a plan without rows: it is stored after the last plan, or in
place of one that is stored and not in the table, and a run commits it like any other. Forwards it
reports the skipped offsets. Backwards it may go only over offsets that the table does not have.
Laws: no offset is loaded twice; none is skipped without a report; and from every state one
undisturbed run brings table and offset to the end of the partition, except offsets that an operator
skipped and did not return to.

`etl.commands.set_offsets` is the command, `etl.decide.set_offsets` its decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.exploring import explored


class Plan(NamedTuple):
    """From `start` to `until`, under a number: as rows, or as a reset, which may go back."""

    number: int
    start: int
    until: int
    id: int
    is_reset: bool = False


class Ledger(NamedTuple):
    """ZooKeeper: the plans, the offset with the version of its znode, and which actor holds the
    driver's lock.
    """

    plans: tuple[Plan, ...] = ()
    offset: int = 0
    version: int = 0
    lock: int | None = None


class Actor(NamedTuple):
    """A run, or the command that sets a position: what it does next, and what it knows."""

    at: str = "idle"
    sets: bool = False
    plan: Plan | None = None
    old: Plan | None = None
    """The plan that `plan` takes the place of."""
    version: int = 0
    """Of the offset's znode, when it looked."""
    bit: int = 0
    """Of the table, when it opened it to write."""
    then: Plan | None = None
    """The reset to store once an earlier plan's offset is moved."""


class State(NamedTuple):
    """Everything at one moment, and what may still happen."""

    ledger: Ledger = Ledger()
    applied: tuple[Plan, ...] = ()
    end: int = 1
    actors: tuple[Actor, ...] = (Actor(), Actor())
    saved: Ledger | None = None
    runs: int = 3
    sets: int = 2
    crashes: int = 1
    losses: int = 2
    restores: int = 1
    longest: int = 3
    ids: int = 1

    @property
    def bit(self) -> int:
        return self.applied[-1].number if self.applied else 0


SMALL = State(runs=2, sets=1, crashes=0, losses=1, restores=0, longest=2)
COPIED = State(runs=2, sets=1, crashes=0, losses=0, restores=1, longest=2)
"""Budgets for a few seconds each; `State(sets=2, runs=2, longest=2)` takes minutes."""


def loaded(applied: tuple[Plan, ...]) -> list[int]:
    return [
        offset for plan in applied if not plan.is_reset for offset in range(plan.start, plan.until)
    ]


def passed_over(applied: tuple[Plan, ...]) -> set[int]:
    """What resets let go and none came back for."""
    found = set[int]()
    for plan in applied:
        if plan.is_reset:
            found = (found | set(range(plan.start, plan.until))) - set(
                range(plan.until, plan.start)
            )
    return found


def may_go_to(target: int, position: int, applied: tuple[Plan, ...]) -> bool:
    """Forwards anywhere; backwards only over what the table does not hold."""
    return not set(range(target, position)) & set(loaded(applied))


def found_by(s: State) -> tuple[str, Plan | None]:
    """`etl.decide.reconcile` in small: the next action, and its plan."""
    newest = s.ledger.plans[-1] if s.ledger.plans else None
    number = newest.number if newest else 0
    held = s.applied[-1] if s.applied else None
    if held and (
        held.number > number or (newest and held.number == number and held.id != newest.id)
    ):
        return "adopt", held
    if newest and number > s.bit:
        return "replay", newest
    return ("repair" if newest and s.ledger.offset != newest.until else "new"), newest


def _put(s: State, i: int, actor: Actor) -> State:
    return s._replace(actors=(*s.actors[:i], actor, *s.actors[i + 1 :]))


def _ended(s: State, i: int) -> State:
    return _put(s, i, Actor())._replace(
        ledger=s.ledger._replace(lock=None if s.ledger.lock == i else s.ledger.lock)
    )


def _looks(s: State, i: int, actor: Actor) -> Iterator[tuple[str, State]]:
    what, newest = found_by(s)
    knows = actor._replace(version=s.ledger.version)
    if what == "adopt" and newest:
        if actor.sets:
            yield f"{i} must not set: the table knows more", _ended(s, i)
            return
        plans = (*(plan for plan in s.ledger.plans if plan.number < newest.number), newest)
        adopting = _put(s, i, knows._replace(at="commit", plan=newest))
        yield (
            f"{i} adopts {newest.number}",
            adopting._replace(ledger=s.ledger._replace(plans=plans)),
        )
    elif what == "replay" and newest:
        if actor.sets:
            for plan in _resets(
                s, newest.number, newest.until if newest.is_reset else newest.start, newest
            ):
                yield (
                    f"{i} wants {plan}",
                    _put(s, i, knows._replace(at="supersede", plan=plan, old=newest))._replace(
                        ids=s.ids + 1
                    ),
                )
        else:
            yield (
                f"{i} replays {newest.number}",
                _put(s, i, knows._replace(at="append", plan=newest)),
            )
    elif actor.sets:
        position = newest.until if newest else 0
        for plan in _resets(s, (newest.number if newest else 0) + 1, position) if newest else ():
            if what == "repair":
                wants = knows._replace(at="commit", plan=newest, then=plan)
            else:
                wants = knows._replace(at="store", plan=plan)
            yield f"{i} wants {plan}", _put(s, i, wants)._replace(ids=s.ids + 1)
        yield f"{i} sets nothing", _ended(s, i)
    elif what == "repair":
        yield f"{i} repairs", _put(s, i, knows._replace(at="commit", plan=newest))
    elif s.end > (newest.until if newest else 0):
        plan = Plan(
            (newest.number if newest else 0) + 1, newest.until if newest else 0, s.end, s.ids
        )
        yield (
            f"{i} plans {plan}",
            _put(s, i, knows._replace(at="store", plan=plan))._replace(ids=s.ids + 1),
        )
    else:
        yield f"{i} finds nothing new", _ended(s, i)


def _resets(s: State, number: int, position: int, old: Plan | None = None) -> Iterator[Plan]:
    """Every target. A reset that takes the place of another one begins where that one began: what
    it let go is let go by this one.
    """
    begins = old.start if old and old.is_reset else position
    for target in range(s.end + 1):
        if target != position and may_go_to(target, position, s.applied):
            yield Plan(number, begins, target, s.ids, is_reset=True)


def _stores(s: State, i: int, actor: Actor) -> Iterator[tuple[str, State]]:
    """Put-if-absent, or compare-and-set on the plan's znode."""
    assert actor.plan is not None
    newest = s.ledger.plans[-1] if s.ledger.plans else None
    if actor.at == "supersede":
        is_free = newest == actor.old
    else:
        is_free = not any(plan.number == actor.plan.number for plan in s.ledger.plans)
    if not is_free:
        yield f"{i} finds another plan there", _ended(s, i)
        return
    plans = tuple(sorted((*(plan for plan in s.ledger.plans if plan != actor.old), actor.plan)))
    stored = s._replace(ledger=s.ledger._replace(plans=plans))
    yield (
        f"{i} stores {actor.plan}",
        _ended(stored, i) if actor.sets else _put(stored, i, actor._replace(at="append")),
    )


def _appends(s: State, i: int, actor: Actor) -> Iterator[tuple[str, State]]:
    """Open the table, which remembers the bit that it saw; write only if it is still that; then
    read it again.
    """
    plan = actor.plan
    assert plan is not None
    if actor.at == "append":
        at = "check" if s.bit >= plan.number else "write"
        yield f"{i} opens the table for {plan.number}", _put(s, i, actor._replace(at=at, bit=s.bit))
    elif actor.at == "write":
        read = _put(s, i, actor._replace(at="check", bit=0))
        yield (
            f"{i} writes {plan.number}",
            read._replace(applied=(*s.applied, plan)) if s.bit == actor.bit else read,
        )
    elif plan in s.applied:
        yield f"{i} sees its plan", _put(s, i, actor._replace(at="commit"))
    else:
        yield f"{i} sees another's plan", _put(s, i, Actor("look"))


def _commits(s: State, i: int, actor: Actor) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the version seen when it looked."""
    assert actor.plan is not None
    if s.ledger.version != actor.version:
        yield f"{i} finds the offset moved", _ended(s, i)
        return
    moved = s._replace(ledger=s.ledger._replace(offset=actor.plan.until, version=actor.version + 1))
    goes_on = (
        actor._replace(at="store", plan=actor.then, then=None) if actor.then else Actor("look")
    )
    yield f"{i} moves the offset to {actor.plan.until}", _put(moved, i, goes_on)


_DOES = {
    "look": _looks,
    "store": _stores,
    "supersede": _stores,
    "append": _appends,
    "write": _appends,
    "check": _appends,
    "commit": _commits,
}


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    if s.end < s.longest:
        yield "the log grows", s._replace(end=s.end + 1)
    if s.restores and s.saved is None and s.ledger.plans:
        yield "the ledger is copied", s._replace(saved=s.ledger._replace(lock=None))
    if s.restores and s.saved:
        yield "the ledger is restored", s._replace(ledger=s.saved, restores=s.restores - 1)
    if s.losses and s.ledger.lock is not None:
        yield (
            "a session is lost",
            s._replace(ledger=s.ledger._replace(lock=None), losses=s.losses - 1),
        )
    for i, actor in enumerate(s.actors):
        if actor.at == "idle":
            if s.ledger.lock is None:
                held = s._replace(ledger=s.ledger._replace(lock=i))
                if s.runs:
                    yield f"{i} runs", _put(held, i, Actor("look"))._replace(runs=s.runs - 1)
                if s.sets:
                    yield (
                        f"{i} sets",
                        _put(held, i, Actor("look", sets=True))._replace(sets=s.sets - 1),
                    )
            continue
        if s.crashes:
            yield f"{i} dies at {actor.at}", _ended(s, i)._replace(crashes=s.crashes - 1)
        yield from _DOES[actor.at](s, i, actor)


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks, the one about quiet runs apart."""
    position, reported, rows = 0, set[int](), loaded(s.applied)
    if len(set(rows)) < len(rows):
        return f"rows are there twice: {s.applied}"
    for plan in s.applied:
        if plan.start != position:
            return f"a plan does not begin where the last one ended: {s.applied}"
        reported |= set(range(plan.start, plan.until))
        position = plan.until
        if not set(range(position)) <= reported:
            return f"offsets were passed over without a word: {s.applied}"
    return None


def after_one_quiet_run(s: State) -> State:
    """What one driver alone makes of it, with nothing else happening."""
    s = State(
        s.ledger._replace(lock=None),
        s.applied,
        s.end,
        (Actor(),),
        runs=1,
        sets=0,
        crashes=0,
        losses=0,
        restores=0,
        longest=s.end,
        ids=10_000,
    )
    while after := next((after for _, after in steps(s)), None):
        s = after
    return s


def _quiet(s: State) -> str | None:
    last = after_one_quiet_run(s)
    bad, rows = broken_law(last), set(loaded(last.applied))
    position = last.applied[-1].until if last.applied else 0
    if (
        bad
        or not last.ledger.offset == position == s.end
        or rows & passed_over(last.applied)
        or (rows | passed_over(last.applied)) != set(range(s.end))
    ):
        return f"a quiet run ends with {bad or last}"
    return None


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    calm = set[tuple[object, ...]]()

    def law(s: State) -> str | None:
        bad, there = broken_law(s), (s.ledger._replace(lock=None), s.applied, s.end)
        if bad or there in calm:
            return bad
        calm.add(there)
        return _quiet(s)

    return explored(start, steps, law)
