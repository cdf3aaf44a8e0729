"""What a pipeline's cluster is called: the id that the brokers tell, or the name that the conf
gives. Pure functions of values.

The name is part of the table's application id, so a pipeline keeps the one that it began under.
Brokers before 0.10.1 tell no id; once they are upgraded they do, one after the other, and which of
them answers must not change what the pipeline is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from etl.errors import NeedsDecision, SettingsError
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot

_APART = (
    "offsets of one cluster mean nothing on another, which takes a pipeline and a table of its own"
)


@dataclass(frozen=True, slots=True)
class ClusterName:
    """What a cluster is called, and by which id it is known besides."""

    name: str
    cluster_id: str | None = None
    """The id that the brokers tell, or told when the newest plan was made; None where that is the
    name, and where they never told one.
    """


def cluster_name(
    newest: Plan | None, told: str | None, said: str | None, is_in_table: Callable[[str], bool]
) -> ClusterName:
    """What the cluster of a pipeline is called. `told`: the id that the brokers tell; `said`:
    `cluster` in the conf.

    `is_in_table`: whether the table has commits of this pipeline under that name; asked where the
    ledger has no plan, and two names may be meant. Raises SettingsError where nobody says what the
    cluster is called, NeedsDecision for another cluster than the newest plan's.
    """
    if newest is not None:
        return _as_planned(newest, told, said)
    if told is None:
        return ClusterName(_said(said, "give the cluster a name in the conf"))
    if said and said != told and is_in_table(said) and not is_in_table(told):
        return ClusterName(said, told)
    return ClusterName(told)


def is_same_cluster(plan: Plan, snapshot: Snapshot, said: str | None) -> bool:
    """Whether the plan, of whatever pipeline, is of the cluster that was looked at: by the ids
    where they are known, else by the names.
    """
    if plan.cluster == snapshot.cluster:
        return (
            None in (plan.cluster_id, snapshot.cluster_id) or plan.cluster_id == snapshot.cluster_id
        )
    if plan.cluster_id is not None:
        return plan.cluster_id in (snapshot.cluster, snapshot.cluster_id)
    return plan.cluster in (snapshot.cluster_id, said)


def name_put_back(cluster: str) -> str:
    """The way out where a pipeline's own brokers are taken for another cluster."""
    return f"only if these are the brokers that it was loaded from, upgraded since: `cluster: {cluster}` in the conf"


def _as_planned(newest: Plan, told: str | None, said: str | None) -> ClusterName:
    name, known = newest.cluster, newest.cluster_id
    if told is None:
        said = _said(
            said,
            f"`cluster: {name}` in the conf, the name under which the ledger has this pipeline",
        )
    if name == told:
        return ClusterName(name)
    if name != said:
        what = (
            f"the newest plan is of cluster {name}, and these brokers are of cluster {told or said}"
        )
        raise NeedsDecision(
            what, key="cluster", check=f"what the conf points at: {_APART}; {name_put_back(name)}"
        )
    if told and known and told != known:
        what = f"the newest plan is of cluster {name}, that of id {known}, and these brokers tell {told}"
        raise NeedsDecision(what, key="cluster", check=f"what the conf points at: {_APART}")
    return ClusterName(name, told or known)


def _said(said: str | None, check: str) -> str:
    if not said:
        raise SettingsError("the brokers tell no cluster id", key="cluster", check=check)
    return said
