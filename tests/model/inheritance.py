"""Several pipelines, their partitions and one table, as a small explicit-state model: an operator
lets one inherit another.

Every interleaving of runs and of `etl.commands.inherit_pipeline`, with crashes at each step and
with sessions that are lost without their owner's knowledge: its append may come at any later
moment. All ledgers are in one ZooKeeper. `SCENARIOS` are a pipeline that is renamed, one that is
renamed twice, two that are merged into one (each with topics of its own), an inheritance that is
reverted, two that inherit the same one, one that is retired before it loaded anything, and two that
begin one topic together.

An inheritance and a retirement close the number of a plan that is stored and not in the table: a
plan that reads nothing replaces it and is committed to the table, so that a driver that slept finds
its number used.

    python -m tests.model.inheritance

Laws: no offset is in the table twice, also with lost sessions, unless two pipelines begin a topic
together; then every pipeline stops at its next observation. No offset is left out. While no session
is lost, a pipeline that inherited by an operator's decision may continue.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored

OPERATOR = "operator"
END = 2
"""How far a log grows."""


class At(IntEnum):
    """The next step of an actor."""

    IDLE, LOOK, STORE, APPEND, RECORD, READ, CLOSE, RETIRE, RESUME = range(9)


Known = tuple[tuple[str, int], ...]
"""A number for each of some topics or pipelines, in order of the names."""


class Plan(NamedTuple):
    """Where its topics were, and are after it."""

    number: int
    starts: Known
    positions: Known
    table_version: int
    """How many commits the table had when it was made."""
    took: str | None = None
    """Of an inheritance: the predecessor."""
    predecessors: Known = ()
    """All predecessors so far, ours and those of our predecessors; the newest plan of each at that
    time.
    """

    def topics(self) -> set[str]:
        """Those that it reads."""
        starts = dict(self.starts)
        return {topic for topic, position in self.positions if position > starts.get(topic, 0)}


class Commit(NamedTuple):
    """A plan in the table."""

    by: str
    plan: Plan


class Pipeline(NamedTuple):
    """The ledger of one pipeline, and its run."""

    newest: Plan | None = None
    recorded: int = 0
    """The newest plan with a stored result; commits up to it are never read again."""
    retired: bool = False
    lock: str | None = None
    """Who holds its driver's lock."""
    runs: int = 0
    """How often it may still begin."""
    at: At = At.IDLE
    plan: Plan | None = None


class DecisionResult(NamedTuple):
    """An operator lets `who` take the place of `of`."""

    who: str
    """Empty: `of` is retired, and no pipeline takes its place."""
    of: str


class Operator(NamedTuple):
    """At work on one of the rulings."""

    at: At = At.IDLE
    ruling: DecisionResult | None = None
    plan: Plan | None = None


class Scenario(NamedTuple):
    """Who reads which topics, and which rulings come, one after the other."""

    topics: Mapping[str, str]
    """A letter for each topic."""
    loaded: tuple[str, ...]
    """The pipelines that loaded offset 0 of their topics, in this order."""
    runs: Mapping[str, int]
    rulings: tuple[DecisionResult, ...] = ()
    is_taken_back: bool = False
    """Then the place may be taken of a pipeline that has committed nothing."""
    begins_behind: str = ""
    """A pipeline of the same group, which may not begin before the rulings are done."""
    has_rivals: bool = False
    """Then the pipeline that inherits first may continue, or neither."""
    at_once: bool = False
    """Two begin the same topic: both may append once."""


class State(NamedTuple):
    """All of it."""

    ends: Known
    table: tuple[Commit, ...]
    pipelines: tuple[Pipeline, ...]
    operator: Operator = Operator()
    ruled: int = 0
    """How many of the rulings are done."""
    lost: int = 1
    """How many sessions may still be lost."""
    crashes: int = 1


SCENARIOS = {
    "renamed": Scenario(
        {"g": "a", "gn": "a"}, ("g",), {"g": 2, "gn": 3}, (DecisionResult("gn", "g"),)
    ),
    "renamed twice": Scenario(
        {"g": "a", "gn": "a", "gm": "a"},
        ("g",),
        {"g": 1, "gn": 2, "gm": 1},
        (DecisionResult("gn", "g"), DecisionResult("gm", "gn")),
    ),
    "merged": Scenario(
        {"x": "a", "y": "b", "m": "ab"},
        ("x", "y"),
        {"x": 1, "y": 0, "m": 2},
        (DecisionResult("m", "x"), DecisionResult("m", "y")),
    ),
    "taken back": Scenario(
        {"g": "a", "gn": "a"},
        ("g",),
        {"g": 2, "gn": 2},
        (DecisionResult("gn", "g"), DecisionResult("g", "gn")),
        is_taken_back=True,
    ),
    "two heirs": Scenario(
        {"g": "a", "x": "a", "y": "a"},
        ("g",),
        {"g": 1, "x": 1, "y": 1},
        (DecisionResult("x", "g"), DecisionResult("y", "g")),
        has_rivals=True,
    ),
    "retired": Scenario(
        {"g": "a", "x": "a"}, (), {"g": 2, "x": 2}, (DecisionResult("", "g"),), begins_behind="x"
    ),
    "at once": Scenario({"x": "a", "y": "a"}, (), {"x": 2, "y": 2}, at_once=True),
}


def begin(scenario: Scenario) -> State:
    """The first state."""
    table, plans = list[Commit](), dict[str, Plan]()
    for name in scenario.loaded:
        plan = plans[name] = Plan(
            1, (), tuple((topic, 1) for topic in scenario.topics[name]), len(table)
        )
        table.append(Commit(name, plan))
    pipelines = tuple(
        Pipeline(plans.get(name), int(name in plans), runs=scenario.runs[name])
        for name in scenario.topics
    )
    topics = sorted({topic for named in scenario.topics.values() for topic in named})
    return State(tuple((topic, 1) for topic in topics), tuple(table), pipelines)


# -- decisions
# --------------------------------------------------------------------------------------------------


def bit(s: State, by: str) -> int:
    """The table's transaction version for one of the pipelines."""
    return max((commit.plan.number for commit in s.table if commit.by == by), default=0)


def loads(scenario: Scenario, name: str, plan: Plan | None, commit: Commit) -> bool:
    """Whether by this commit another pipeline loaded a topic of ours, or took our place, or the
    place that we took.
    """
    if commit.by == name:
        return False
    predecessors = dict(plan.predecessors) if plan else {}
    is_our_place = bool(
        commit.plan.took and {name, *predecessors} & dict(commit.plan.predecessors).keys()
    )
    topics = dict(commit.plan.positions).keys() if is_our_place else commit.plan.topics()
    return bool(topics & set(scenario.topics[name]))


def refuses(scenario: Scenario, s: State, name: str, plan: Plan | None, *, but: str = "") -> bool:
    """Whether a run or an operator stops who finds this plan as the pipeline's newest one; what
    `but` did is let pass.
    """
    ours, mine = bit(s, name), _of(scenario, s, name)
    others = [commit for commit in s.table if commit.by not in (name, but)]
    if mine.retired and not but:
        return True
    if not ours:
        if plan:
            known, heirs = (set(dict(plan.positions)), dict(plan.predecessors))
        else:
            known, heirs = (set[str](), dict[str, int]())
        request = set(scenario.topics[name])
        if any(
            request & dict(c.plan.positions).keys() - (known if c.by in heirs else set())
            for c in others
        ):
            return True
    if plan is None:
        return False
    predecessors = dict(plan.predecessors)
    if plan.took and any(
        c.plan.number > predecessors[c.by] and loads(scenario, name, plan, c)
        for c in others
        if c.by in predecessors
    ):
        return True
    if plan.took:
        after = max(known_by(s, name, mine, plan), last_taken(s, plan))
    else:
        after = known_by(s, name, mine, plan)
    return any(
        c in others and loads(scenario, name, plan, c) and c.plan.number > predecessors.get(c.by, 0)
        for c in s.table[after:]
    )


def in_force(scenario: Scenario, s: State, name: str) -> Plan | None:
    """The newest plan of the ledger; that of the table where it is ahead or another one, and a run
    adopts it.
    """
    newest, in_table = _of(scenario, s, name).newest, bit(s, name)
    return (
        newest_of(s, name) if in_table and in_table >= (newest.number if newest else 0) else newest
    )


def known_by(s: State, name: str, mine: Pipeline, plan: Plan) -> int:
    """The number of the table's commits that are never read again: up to our newest recorded one,
    or those before the plan.
    """
    found = [
        i + 1
        for i, commit in enumerate(s.table)
        if commit.by == name and commit.plan.number == mine.recorded
    ]
    return found[-1] if found else plan.table_version


def last_taken(s: State, plan: Plan) -> int:
    """The same for the offsets that this plan inherited."""
    predecessors = dict(plan.predecessors)
    return max(
        (
            i + 1
            for i, c in enumerate(s.table)
            if c.by == plan.took and c.plan.number <= predecessors[c.by]
        ),
        default=0,
    )


def take_over_plan(scenario: Scenario, s: State, ruling: DecisionResult) -> Plan:
    """The plan that begins where the other pipeline is; one of ours that is stored and not in the
    table gives it its number.
    """
    last, theirs = in_force(scenario, s, ruling.who), newest_of(s, ruling.of)
    is_instead = last is not None and last.number > bit(s, ruling.who)
    ours = dict((last.starts if is_instead else last.positions) if last else ())
    for topic, position in theirs.positions:
        if topic in scenario.topics[ruling.who]:
            ours[topic] = max(position, ours.get(topic, 0))
    heirs = dict(last.predecessors) if last else {}
    for one, number in (*theirs.predecessors, (ruling.of, theirs.number)):
        if one != ruling.who:
            heirs[one] = max(number, heirs.get(one, 0))
    if last is None:
        number = 1
    elif is_instead:
        number = last.number
    else:
        number = last.number + 1
    return Plan(number, _known(ours), _known(ours), len(s.table), ruling.of, _known(heirs))


def closing_plan(s: State, name: str, stored: Plan | None) -> Plan | None:
    """The plan that takes the number of a stored plan, so that a driver that slept cannot append
    under it. None: there is no such plan.

    It reads nothing and keeps every position; of a pipeline that has loaded nothing, no other
    pipeline takes them for loaded. A stored plan that reads nothing itself is executed as it is.
    """
    if stored is None or stored.number <= bit(s, name):
        return None
    if not stored.topics():
        return stored
    return stored._replace(positions=stored.starts if bit(s, name) else ())


def newest_of(s: State, name: str) -> Plan:
    """That of its newest commit."""
    return max(
        (commit.plan for commit in s.table if commit.by == name), key=lambda plan: plan.number
    )


def _known(found: Mapping[str, int]) -> Known:
    return tuple(sorted(found.items()))


# -- what may happen next
# ------------------------------------------------------------------------------------------------


def steps(scenario: Scenario, s: State) -> Iterator[tuple[str, State]]:
    """Everything."""
    for topic, end in s.ends:
        if end < END:
            yield f"{topic} grows", s._replace(ends=_known({**dict(s.ends), topic: end + 1}))
    for name in scenario.topics:
        found = _of(scenario, s, name)
        if found.lock and s.lost:
            yield (
                f"the session of {found.lock} is lost to {name}",
                _put(scenario, s._replace(lost=s.lost - 1), name, lock=None),
            )
        if found.at is not At.IDLE and s.crashes:
            yield f"{name} dies", _end(scenario, s, name)._replace(crashes=s.crashes - 1)
        yield from RUN(scenario, s, name, found)
    if s.operator.at is not At.IDLE and s.crashes:
        yield "the operator's command dies", _give_up(scenario, s)._replace(crashes=s.crashes - 1)
    yield from RULE(scenario, s, s.operator)


def _of(scenario: Scenario, s: State, name: str) -> Pipeline:
    return s.pipelines[list(scenario.topics).index(name)]


def _put(scenario: Scenario, s: State, name: str, **changes: object) -> State:
    at = list(scenario.topics).index(name)
    return s._replace(
        pipelines=tuple(
            one._replace(**changes) if i == at else one  # type: ignore[arg-type]
            for i, one in enumerate(s.pipelines)
        )
    )


def _end(scenario: Scenario, s: State, name: str) -> State:
    lock = _of(scenario, s, name).lock
    return _put(scenario, s, name, at=At.IDLE, plan=None, lock=None if lock == name else lock)


def run(scenario: Scenario, s: State, name: str, found: Pipeline) -> Iterator[tuple[str, State]]:
    """One run of a pipeline."""

    def goes(at: At, plan: Plan | None, to: State = s, **changes: object) -> State:
        return _put(scenario, to, name, at=at, plan=plan, **changes)

    may_begin = name != scenario.begins_behind or s.ruled == len(scenario.rulings)
    if found.at is At.IDLE and not found.lock and found.runs and may_begin:
        yield f"{name} begins", goes(At.LOOK, None, lock=name, runs=found.runs - 1)
    elif found.at is At.LOOK:
        yield from _look(scenario, s, name, found)
    elif (
        found.at in (At.STORE, At.RECORD) and found.lock != name
    ):  # without its session nothing is written
        yield f"{name} notices that its session is lost", _end(scenario, s, name)
    elif found.at is At.STORE:
        yield f"{name} stores", goes(At.APPEND, found.plan, newest=found.plan)
    elif found.at is At.APPEND and found.plan:
        if bit(s, name) < found.plan.number:
            written = s._replace(table=(*s.table, Commit(name, found.plan)))
        else:
            written = s
        is_refused = refuses(scenario, written, name, found.plan)
        yield (
            f"{name} appends",
            _end(scenario, written, name) if is_refused else goes(At.RECORD, found.plan, written),
        )
    elif found.at is At.RECORD and found.plan:
        yield (
            f"{name} records",
            goes(At.LOOK, None, recorded=max(found.recorded, found.plan.number)),
        )


def _look(scenario: Scenario, s: State, name: str, found: Pipeline) -> Iterator[tuple[str, State]]:
    newest, ours = in_force(scenario, s, name), bit(s, name)
    if found.lock != name or refuses(scenario, s, name, newest):
        yield f"{name} refuses", _end(scenario, s, name)
        return
    if newest and newest.number > ours:
        yield f"{name} replays", _put(scenario, s, name, at=At.APPEND, plan=newest)
        return
    if newest != found.newest:
        yield f"{name} adopts", _put(scenario, s, name, newest=newest)
        return
    if newest and found.recorded < newest.number:
        yield f"{name} repairs", _put(scenario, s, name, at=At.RECORD, plan=newest)
        return
    before = dict(newest.positions) if newest else {}
    starts = {topic: before.get(topic, 0) for topic in scenario.topics[name]}
    positions = {**before, **{topic: end for topic, end in s.ends if topic in starts}}
    plan = Plan(
        ours + 1,
        _known({**before, **starts}),
        _known(positions),
        len(s.table),
        None,
        newest.predecessors if newest else (),
    )
    if plan.topics():
        yield f"{name} plans", _put(scenario, s, name, at=At.STORE, plan=plan)
    else:
        yield f"{name} has nothing new", _end(scenario, s, name)


def rule(scenario: Scenario, s: State, found: Operator) -> Iterator[tuple[str, State]]:
    """The operator: the rulings one after the other, each begun again where it did not come to its
    end.
    """
    if found.at is At.IDLE:
        left = scenario.rulings[s.ruled :]
        if left and not any(_of(scenario, s, name).lock for name in left[0] if name):
            locked = s
            for name in left[0]:
                locked = _put(scenario, locked, name, lock=OPERATOR) if name else locked
            yield (
                f"the operator: {left[0].who or 'no heir'} for {left[0].of}",
                locked._replace(operator=Operator(At.READ, left[0])),
            )
    elif found.ruling and any(
        _of(scenario, s, name).lock != OPERATOR for name in found.ruling if name
    ):
        yield "the operator's session is lost", _give_up(scenario, s)
    elif found.at is At.READ and found.ruling:
        yield from _read(scenario, s, found.ruling)
    elif found.at is At.CLOSE and found.ruling:
        of = found.ruling.of
        stored = _of(scenario, s, of).newest
        if stored and bit(s, of) < stored.number:
            closed = s._replace(table=(*s.table, Commit(of, stored)))
        else:
            closed = s
        yield (
            f"the stored number of {of} is closed in the table",
            closed._replace(operator=found._replace(at=At.READ)),
        )
    elif found.at is At.RETIRE and found.ruling:
        retired = _put(scenario, s, found.ruling.of, retired=True)
        is_last = not found.ruling.who
        if is_last:
            after = _done(scenario, retired)
        else:
            after = retired._replace(operator=found._replace(at=At.RESUME))
        yield f"{found.ruling.of} is retired", after
    elif found.at is At.RESUME and found.ruling:
        resumed = _put(scenario, s, found.ruling.who, retired=False)
        done = found.plan is None
        yield (
            f"{found.ruling.who} is in service",
            _done(scenario, resumed)
            if done
            else (resumed._replace(operator=found._replace(at=At.STORE))),
        )
    elif found.at is At.STORE and found.ruling:
        yield (
            "the take-over is stored",
            _done(scenario, _put(scenario, s, found.ruling.who, newest=found.plan)),
        )


def _read(scenario: Scenario, s: State, ruling: DecisionResult) -> Iterator[tuple[str, State]]:
    theirs = _of(scenario, s, ruling.of)
    closing = CLOSING(s, ruling.of, theirs.newest)
    if not ruling.who:
        at, newest = (At.CLOSE, closing) if closing else (At.RETIRE, theirs.newest)
        yield (
            "the operator reads",
            _put(scenario, s, ruling.of, newest=newest)._replace(operator=Operator(at, ruling)),
        )
        return
    if not bit(s, ruling.of) and not closing:  # it never went on in our place
        yield (
            "the operator reads",
            s._replace(operator=Operator(At.RESUME, ruling))
            if scenario.is_taken_back
            else _give_up(scenario, s),
        )
    elif closing and (bit(s, ruling.of) or ruling.who in dict(closing.predecessors)):
        stored = _put(scenario, s, ruling.of, newest=closing)
        yield (
            f"the plan that closes {ruling.of} is stored",
            stored._replace(operator=Operator(At.CLOSE, ruling)),
        )
    elif not bit(s, ruling.of):
        yield "the operator is refused", _give_up(scenario, s)
    elif refuses(scenario, s, ruling.who, in_force(scenario, s, ruling.who), but=ruling.of) and bit(
        s, ruling.who
    ):
        yield "the operator is refused", _give_up(scenario, s)
    else:
        yield (
            "the operator reads",
            s._replace(operator=Operator(At.RETIRE, ruling, take_over_plan(scenario, s, ruling))),
        )


def _give_up(scenario: Scenario, s: State) -> State:
    for name in scenario.topics:
        if _of(scenario, s, name).lock == OPERATOR:
            s = _put(scenario, s, name, lock=None)
    return s._replace(operator=Operator())


def _done(scenario: Scenario, s: State) -> State:
    return _give_up(scenario, s)._replace(ruled=s.ruled + 1)


RUN, RULE, CLOSING = run, rule, closing_plan


# -- laws
# --------------------------------------------------------------------------------------------------


@functools.cache
def lost_or_double(table: tuple[Commit, ...]) -> tuple[str, bool]:
    """A topic of which the table leaves offsets out, and whether it holds one twice."""
    rows = Counter(
        (topic, offset)
        for c in table
        for topic, until in c.plan.positions
        for offset in range(dict(c.plan.starts).get(topic, 0), until)
    )
    ends = {topic: max(offset for one, offset in rows if one == topic) + 1 for topic, _ in rows}
    short = [topic for topic, end in ends.items() if sum(one == topic for one, _ in rows) != end]
    return min(short, default=""), any(count > 1 for count in rows.values())


def broken(scenario: Scenario, s: State) -> str | None:
    """The law that this state breaks."""
    left_out, is_doubled = lost_or_double(s.table)
    if left_out:
        return f"offsets of {left_out} are left out"
    heir = scenario.rulings[-1].who if scenario.rulings and not scenario.has_rivals else ""
    if (
        heir
        and s.lost
        and s.ruled == len(scenario.rulings)
        and refuses(scenario, s, heir, in_force(scenario, s, heir))
    ):
        return f"{heir} may not continue"
    if not is_doubled:
        return None
    if not scenario.at_once:
        return "rows are doubled"
    on = [
        name
        for name in scenario.topics
        if not refuses(scenario, s, name, in_force(scenario, s, name))
    ]
    return f"rows are doubled and {on[0]} continues" if on else None


def explore(scenario: Scenario) -> tuple[int, str | None]:
    """How many states there are, and the first broken law with the way to it."""
    return explored(begin(scenario), lambda s: steps(scenario, s), lambda s: broken(scenario, s))


if __name__ == "__main__":
    failed = False
    for title, one in SCENARIOS.items():
        states, law = explore(one)
        failed = failed or bool(law)
        print(f"{title}: {states:,} states, " + (f"BROKEN: {law}" if law else "every law holds"))
    sys.exit(failed)
