"""The cluster's name while brokers begin to report an id."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from etl.decide.inherit_pipeline import predecessor_of
from etl.decide.recreated_or_truncated import cluster_identity
from etl.errors import LedgersDisagree, NeedsDecision, SettingsError
from etl.ledger.plan_document import parse_plan
from etl.model.partitions import BrokerFamily, ClusterIdentity
from etl.model.plans import Plan
from etl.report.run_progress import Outcome
from tests.builders import kafka_named, plain_plan, with_facts, with_keys
from tests.fakes.outside import CLUSTER, Outside
from tests.fakes.stories import (
    ENDED,
    SETTINGS,
    grow,
    loaded_by_another,
    old_pipeline,
    outcomes,
    outside_of,
    reject_unfinished,
    run,
    snapshot_of,
)
from tests.fakes.znode_views import IN_PIPELINE
from tests.fakes.zookeeper_memory import Memory

ID, OTHER_ID = "fZ775keoRQSq2lvL-8eQiw", "b2pZnT1jQ5yKp0aXc3vWmA"


def called(
    newest: Plan | None = None,
    reported: str | None = None,
    configured: str | None = None,
    in_table: tuple[str, ...] = (),
) -> ClusterIdentity:
    return cluster_identity(
        newest, reported, configured, lambda name: name in in_table, BrokerFamily.KAFKA
    )


def plan_of(cluster: str, cluster_id: str | None = None) -> Plan:
    return plain_plan(2, cluster=kafka_named(cluster, cluster_id))


@pytest.mark.parametrize(
    ("newest", "reported", "configured", "in_table", "cluster"),
    [
        # the first run takes the reported id, else the name of the conf
        (None, ID, None, (), kafka_named(ID)),
        (None, ID, "old", (), kafka_named(ID)),
        (None, None, "old", (), kafka_named("old")),
        # a pipeline keeps the name under which it began
        (plan_of(ID), ID, None, (), kafka_named(ID)),
        (plan_of(ID), ID, "old", (), kafka_named(ID)),
        (plan_of(ID), ID, ID, (), kafka_named(ID)),
        (plan_of(ID), None, ID, (), kafka_named(ID)),
        (plan_of("old"), None, "old", (), kafka_named("old")),
        (plan_of("old"), ID, "old", (), kafka_named("old", ID)),
        # during a rolling upgrade any broker may answer
        (plan_of("old", ID), None, "old", (), kafka_named("old", ID)),
        (plan_of("old", ID), ID, "old", (), kafka_named("old", ID)),
        # the ledger is lost, and the table has our commits under a name
        (None, ID, "old", ("old",), kafka_named("old", ID)),
        (None, ID, "old", ("old", ID), kafka_named(ID)),
        (None, ID, "old", (ID,), kafka_named(ID)),
    ],
)
def test_a_cluster_has_one_name_whether_its_brokers_report_an_id_or_not(
    newest: Plan | None,
    reported: str | None,
    configured: str | None,
    in_table: tuple[str, ...],
    cluster: ClusterIdentity,
) -> None:
    assert called(newest, reported, configured, in_table) == cluster


def test_without_a_reported_id_and_a_configured_name_the_key_is_named() -> None:
    with pytest.raises(SettingsError, match="The brokers report no cluster id") as caught:
        called()
    assert caught.value.where["key"] == "source.assume_cluster_id"


def test_for_a_conf_without_its_former_name_the_error_contains_the_name() -> None:
    with pytest.raises(
        NeedsDecision, match=f"is of cluster old, and these brokers are of cluster {ID}"
    ) as caught:
        called(plan_of("old"), reported=ID)
    assert (caught.value.exit_code, caught.value.where["key"]) == (5, "source.assume_cluster_id")
    assert "`source.assume_cluster_id: old`" in caught.value.action
    assert "only if" in caught.value.action


@pytest.mark.parametrize("configured", [None, "old"])
def test_with_brokers_without_an_id_the_error_contains_the_id_of_the_pipelines_begin(
    configured: str | None,
) -> None:
    with pytest.raises((NeedsDecision, SettingsError)) as caught:
        called(plan_of(ID), configured=configured)
    assert f"`source.assume_cluster_id: {ID}`" in caught.value.action


@pytest.mark.parametrize(
    ("newest", "text"), [(plan_of(ID), None), (plan_of(ID), "old"), (plan_of("old"), "new")]
)
def test_another_cluster_than_that_of_the_newest_plan_is_refused(
    newest: Plan, text: str | None
) -> None:
    with pytest.raises(NeedsDecision, match=f"these brokers are of cluster {OTHER_ID}"):
        called(newest, reported=OTHER_ID, configured=text)


def test_once_a_plan_knows_the_id_brokers_of_another_one_are_refused_under_the_same_name() -> None:
    with pytest.raises(
        NeedsDecision, match=f"that of id {ID}, and these brokers report {OTHER_ID}"
    ) as caught:
        called(plan_of("old", ID), reported=OTHER_ID, configured="old")
    assert "`cluster:" not in caught.value.action, "no name makes these brokers those"


# -- a pipeline through the upgrade


def upgraded(outside: Outside) -> Outside:
    outside.reported_id = ID
    grow(outside, 2, 2, 2)
    return outside


def test_the_runs_after_an_upgrade_continue_and_one_of_them_reports_it() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    report = run(upgraded(outside))
    assert outcomes(report) == [Outcome.BROKER_CLUSTER_ID_IGNORED, Outcome.INGESTED]
    assert f"Brokers report the cluster id {ID} now" in report.outcomes[0][1]
    assert f"keeps the name {CLUSTER}" in report.outcomes[0][1]
    assert outcomes(run(upgraded(outside))) == [Outcome.INGESTED]
    assert [(plan.cluster.name, plan.cluster.id) for plan in map(plan_in(outside), (1, 2, 3))] == [
        (CLUSTER, None),
        (CLUSTER, ID),
        (CLUSTER, ID),
    ]
    assert set(outside.rows().values()) == {1}


def test_for_a_lost_ledger_and_a_new_cluster_id_the_error_names_the_former_id() -> None:
    former = replace(old_pipeline(), app_id=f"offset-range-etl/{CLUSTER}/group/clicks")
    unnamed = with_keys(SETTINGS, source={"assume_cluster_id": ID})
    with pytest.raises(LedgersDisagree, match=f"cluster {CLUSTER} has loaded this topic") as caught:
        run(loaded_by_another(6, 6, 6, other=former), unnamed)
    assert f"These brokers are of cluster {ID}" in caught.value.message
    assert f"`source.assume_cluster_id: {CLUSTER}`" in caught.value.action
    assert "another table" in caught.value.action and "inherit" not in caught.value.action


def test_with_the_former_id_the_ledger_is_restored_and_a_recreated_topic_is_noticed() -> None:
    outside = outside_of(5, 3, 4)
    outside.topic_ids = {"clicks": "id-1"}
    run(outside)
    outside.zookeeper = Memory()
    outside.zookeeper.ensure(IN_PIPELINE.root)
    recreated = deepcopy(upgraded(outside))
    assert outcomes(run(outside))[0] is Outcome.LEDGER_RESTORED
    reject_unfinished(outside)
    recreated.topic_ids = {"clicks": "id-2"}
    with pytest.raises(NeedsDecision, match="The topic was deleted and recreated"):
        run(recreated)
    assert set(recreated.rows().values()) == {1}


def plan_in(outside: Outside):  # type: ignore[no-untyped-def]
    return lambda number: parse_plan(outside.plans[number], path="plans")


def test_a_pipeline_is_inherited_across_the_upgrade_of_its_cluster() -> None:
    """The conf still gives the name, or the plan of the other pipeline knows the id."""
    snapshot = replace(snapshot_of(loaded_by_another(6, 6, 6)), cluster=kafka_named(ID))
    without_ids = with_facts(snapshot, topic_ids={})
    unnamed = with_keys(SETTINGS, source={"assume_cluster_id": None})
    former = old_pipeline(cluster=kafka_named(CLUSTER))
    upgraded_since = old_pipeline(cluster=kafka_named(CLUSTER, ID))
    of_another = old_pipeline(cluster=kafka_named(CLUSTER, OTHER_ID))
    assert predecessor_of(former, {}, snapshot, SETTINGS).positions == ENDED
    assert predecessor_of(upgraded_since, {}, snapshot, unnamed).positions == ENDED
    with pytest.raises(NeedsDecision, match="`source.assume_cluster_id: cluster-1`"):
        predecessor_of(former, {}, without_ids, unnamed)
    with pytest.raises(NeedsDecision, match="another table.path"):
        predecessor_of(of_another, {}, without_ids, SETTINGS)
