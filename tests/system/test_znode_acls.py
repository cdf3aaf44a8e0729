"""ACLs of znodes on a real ZooKeeper, with logins by digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.commands.pipelines import set_acl
from etl.errors import PermissionDenied
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.permissions import apply_acls, kept_by, writers_of
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.security import EVERYBODY, Access, Acl, Auth, Scheme, SecretRef
from tests.builders import plain_plan, plain_settings

OPEN = {frozenset({EVERYBODY})}


@pytest.fixture
def etl(tmp_path: Path) -> Access:
    (tmp_path / "secret").write_text("of-znodes")
    return Access(
        auth=Auth(Scheme.DIGEST, "etl", SecretRef("file", str(tmp_path / "secret"))),
        acl=Acl.CREATOR,
    )


def test_what_a_pipeline_keeps_is_its_creators_and_what_its_group_shares_is_everybodys(
    connect: str, zookeeper: ZooKeeper, etl: Access
) -> None:
    with ZooKeeper(connect, access=etl) as ours:
        PlanLedger(ours, "g", "p").store_plan(plain_plan(1))
        ours.ensure("/consumers/g/offsets/clicks")
    PlanLedger(zookeeper, "g", "pq").store_plan(plain_plan(1))
    kept = kept_by(zookeeper, "g", "p")
    assert {path.split("/")[4] for path in kept} == {"p"} and len(kept) == 3
    [writers] = set(writers_of(zookeeper, kept).values())
    assert {who.partition(":")[0] for who in writers} == {"digest"}
    below = ("", "/g", "/g/etl", "/g/offsets", "/g/offsets/clicks")
    shared = [f"/consumers{path}" for path in below]
    assert set(writers_of(zookeeper, [*shared, *kept_by(zookeeper, "g", "pq")]).values()) == OPEN
    assert kept_by(zookeeper, "g", "none") == [] and writers_of(zookeeper, ["/none"]) == {}
    with pytest.raises(PermissionDenied, match="none, since.*`etl ledger apply-acl CONF`"):
        PlanLedger(zookeeper, "g", "p").store_plan(plain_plan(2))


def test_acls_are_set_by_whom_they_name_alone(
    connect: str, zookeeper: ZooKeeper, etl: Access
) -> None:
    PlanLedger(zookeeper, "g", "p").store_plan(plain_plan(1))
    kept = kept_by(zookeeper, "g", "p")
    with ZooKeeper(connect, access=etl) as ours:
        named = [*kept, "/consumers/g/etl/p/gone"]
        assert apply_acls(ours, named, dry_run=True) == len(kept)
        assert set(writers_of(zookeeper, kept).values()) == OPEN
        assert apply_acls(ours, named) == len(kept)
    assert set(writers_of(zookeeper, kept).values()).isdisjoint(OPEN)
    with pytest.raises(PermissionDenied, match="for other logins") as refused:
        apply_acls(zookeeper, kept)
    assert refused.value.where["znode"] == kept[0]
    with pytest.raises(PermissionDenied, match="for other logins"):
        apply_acls(zookeeper, kept, dry_run=True)
    with ZooKeeper(connect, access=Access(auth=etl.auth)) as ours:
        assert apply_acls(ours, kept) == len(kept)
    assert set(writers_of(zookeeper, kept).values()) == OPEN


def test_a_dry_run_counts_the_znodes_that_the_command_changes(
    connect: str, zookeeper: ZooKeeper
) -> None:
    PlanLedger(zookeeper, "g", "p").store_plan(plain_plan(1))
    places = {"zookeeper": {"connect": connect}, "source": {"bootstrap_servers": ["127.0.0.1:1"]}}
    settings = plain_settings(group="g", pipeline="p", **places)
    shown = set_acl(settings, dry_run=True)
    assert shown.summary == set_acl(settings).summary, "the driver's own znode is not counted"
