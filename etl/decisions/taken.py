"""What is taken of a pipeline whose place another one takes: where it ended, in topics that the
conf names. Pure functions of values.

The plan that takes it is `succession`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from etl.decisions.identity.cluster_name import is_same_cluster, name_put_back
from etl.decisions.identity.made_again import is_creation_id
from etl.decisions.other_pipelines import name_of
from etl.errors import NeedsDecision, SettingsError
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan
from etl.model.snapshot import OtherPipeline, Snapshot
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken: the other pipeline, and where it ended in the topics that the conf names."""

    other: OtherPipeline
    positions: Mapping[BrokerPartition, int]
    log_epochs: Mapping[BrokerPartition, int]


def taken_from(
    other: OtherPipeline,
    rows_until: Mapping[BrokerPartition, tuple[int, int]],
    snapshot: Snapshot,
    settings: Settings,
) -> Taken:
    """The other's positions in topics of ours; where nobody knows its plan any more, `rows_until`:
    the life of each log and where it ends.

    Raises SettingsError when it has loaded no topic of ours, NeedsDecision when its topics were
    another cluster's.
    """
    found = (
        other.plan.positions
        if other.plan
        else {log: until for log, (_, until) in rows_until.items()}
    )
    epochs = (
        other.plan.log_epochs
        if other.plan
        else {log: epoch for log, (epoch, _) in rows_until.items() if epoch}
    )
    # where rows alone are left, our own position in a log that the conf does not name may be an old
    # one, too
    known = (
        snapshot.ledger.newest.positions if other.plan is None and snapshot.ledger.newest else {}
    )
    positions = {
        log: offset
        for log, offset in found.items()
        if settings.source.topics.admits(log.topic) or log in known
    }
    if not any(settings.source.topics.admits(log.topic) for log in positions):
        what = f"{name_of(other.app_id)} has loaded no topic that this conf names"
        raise SettingsError(
            what, key="--from", check="source.topics, and the pipelines that `etl plan CONF` names"
        )
    if other.plan and other.plan.dialect is not settings.source.dialect:
        what = f"{name_of(other.app_id)} has loaded from {other.plan.dialect.value} brokers: its offsets and its rows' keys are others"
        raise SettingsError(
            what,
            key="--from",
            check="the pipeline's name, and source.dialect; these brokers take a table of their own",
        )
    if other.plan and not is_same_cluster(other.plan, snapshot, settings.cluster):
        _refuse_another_cluster(other.plan, sorted({log.topic for log in positions}), snapshot)
    return Taken(
        other, positions, {log: epoch for log, epoch in epochs.items() if log in positions}
    )


def _refuse_another_cluster(plan: Plan, topics: list[str], snapshot: Snapshot) -> None:
    """Refuse topics of another cluster: only under the same topic id is it the same cluster under a
    new name.
    """
    for topic in topics:
        known, found = plan.topic_ids.get(topic), snapshot.topic_ids.get(topic)
        if known is None or known != found or is_creation_id(known):
            what = f"the rows of this topic in the table are of cluster {plan.cluster}, and this one is {snapshot.cluster}"
            check = "offsets of one cluster mean nothing on another, and their rows could not be told apart: another table.path"
            check += "" if plan.cluster_id else f"; {name_put_back(plan.cluster)}"
            raise NeedsDecision(what, topic=topic, check=check)
