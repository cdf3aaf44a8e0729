"""What a run refuses before it plans: pipelines that are retired, or of another dialect, topics
that others have, that are not there, or that no table keeps."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from etl.errors import NeedsDecision, SettingsError, TopicMissing
from etl.model.plans import Plan
from etl.model.snapshot import Ledger, Snapshot
from etl.settings.sections import Settings

_HIVES_NULL = "__HIVE_DEFAULT_PARTITION__"
_A_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""An expression that a person means as a name, though its dots match any character."""
_TOPICS_NAMED = 5
"""How many topics one message names."""


def refuse_retired(ledger: Ledger) -> None:
    """Refuse to run a pipeline that was taken out of service. Raises NeedsDecision."""
    if ledger.retired:
        what = f"this pipeline was retired: {ledger.retired.reason}"
        taker = ledger.retired.taken_over_by
        back = (
            f"`etl plans take-over CONF --from {taker} --reason ...`"
            if taker
            else "`etl pipelines resume CONF --reason ...`"
        )
        raise NeedsDecision(what, check=f"nothing where that is meant; else {back}")


def refuse_shared_topics(
    topics: Collection[str], others: Mapping[str, frozenset[str]], *, has_plans: bool
) -> None:
    """Refuse topics of another pipeline of the group: offsets are the group's, and both would move
    them. Raises SettingsError.

    `others` are the group's other pipelines with their topics; `has_plans`: this one may have
    loaded rows already.
    """
    for name, theirs in sorted(others.items()):
        if shared := theirs.intersection(topics):
            what = f"pipeline {name} of the same group reads this topic too"
            check = f"which of the two is to go on: `etl pipelines retire CONF {name} --reason ...` takes the other out of service"
            if not has_plans:
                check = f"a group of its own for this pipeline, which has loaded nothing yet; or {check}"
            raise SettingsError(what, key="group", topic=min(shared), check=check)


def refuse_another_dialect(plan: Plan | None, settings: Settings) -> None:
    """Refuse a conf that reads from another family of brokers than the pipeline's plans: its
    offsets mean nothing there.

    `plan` is the pipeline's newest, as far as anybody knows it. Raises SettingsError.
    """
    if plan is not None and plan.dialect is not settings.source.dialect:
        what = (
            f"this pipeline has loaded from {plan.dialect.value} brokers, and the conf says {settings.source.dialect.value}: offsets of "
            "one mean nothing on the other, and rows of both have other keys"
        )
        check = "source.dialect and zookeeper.connect; what other brokers hold takes a group or a pipeline, and a table, of its own"
        raise SettingsError(what, key="source.dialect", check=check)


def refuse_what_cannot_run(snapshot: Snapshot) -> None:
    """Raises NeedsDecision for a retired pipeline, SettingsError for topics that another one of the
    group reads.
    """
    refuse_retired(snapshot.ledger)
    topics = {log.topic for log in (*snapshot.extents, *snapshot.leaderless)}
    refuse_shared_topics(
        topics, snapshot.other_pipelines, has_plans=snapshot.ledger.newest is not None
    )


def refuse_missing_topics(
    settings: Settings,
    topics: Iterable[str],
    of_cluster: Callable[[], Iterable[str]] = tuple,
    *,
    gone: Collection[str] = (),
    read: Collection[str] = (),
) -> None:
    """Refuse a conf whose topics do not exist, or that has none to read. Raises TopicMissing, with
    what the cluster has like it.

    `gone`: topics that are not there and that a plan is left to read: `replay` refuses them, and
    names what leads out. `read`: those that this pipeline knows from before.

    A name may have a dot, and is an expression then: some topic must match it. SettingsError where
    `deny` keeps out what is wanted.
    """
    there, chosen = {*topics, *gone}, settings.source.topics
    for name in filter(_A_NAME.fullmatch, chosen.allow):
        if not any(re.fullmatch(name, topic) for topic in there):
            _refuse_denied([name] if any(re.fullmatch(e, name) for e in chosen.deny) else [])
            like = difflib.get_close_matches(name, sorted(of_cluster()), n=_TOPICS_NAMED)
            check = (
                f"its spelling: the cluster has {', '.join(like)}"
                if like
                else "its spelling, and the cluster the conf points at"
            )
            if name in read:
                check = "whether it was deleted, since this pipeline has read it: then take it out of the list; its rows stay in the table"
            raise TopicMissing(
                "the topic is not there", topic=name, key="source.topics.allow", check=check
            )
    if not there:
        allowed = chosen.model_copy(update={"deny": ()})
        _refuse_denied(
            sorted(
                topic
                for topic in of_cluster()
                if allowed.admits(topic) and not chosen.admits(topic)
            )
        )
        found = sorted(name for name in of_cluster() if not name.startswith("__"))
        more = f" and {len(found) - _TOPICS_NAMED:,} more" if len(found) > _TOPICS_NAMED else ""
        named = f"; the cluster has {', '.join(found[:_TOPICS_NAMED])}{more}" if found else ""
        what = f"no topic matches {list(settings.source.topics.allow)}"
        raise TopicMissing(
            what,
            key="source.topics.allow",
            check=f"the expressions: each must match a whole topic name{named}",
        )


def _refuse_denied(denied: Sequence[str]) -> None:
    """Topics that are allowed, denied, and wanted: there are no others, or they are named. Raises
    SettingsError for the first.
    """
    if denied:
        more = f" (and {len(denied) - 1:,} more)" if denied[1:] else ""
        what = f"source.topics.allow names or matches this topic and source.topics.deny keeps it out{more}"
        check = "both lists: deny wins, and each expression matches a whole name"
        raise SettingsError(what, topic=denied[0], key="source.topics.deny", check=check)


def refuse_topic_that_reads_as_null(settings: Settings, topics: Iterable[str]) -> None:
    """Refuse a topic name that stands for null where Delta keeps the values of partitions, as text.
    Raises SettingsError.
    """
    if "topic" in settings.table.partition_by and _HIVES_NULL in set(topics):
        what = "a table partitioned by topic has null for a topic of this name"
        check = "table.partition_by without topic, or source.topics.deny with this topic, whose records are then not loaded"
        raise SettingsError(what, topic=_HIVES_NULL, key="table.partition_by", check=check)
