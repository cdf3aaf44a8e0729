"""Runs with a protected ledger next to old consumers without logins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from etl.io.zookeeper.permissions import kept_by, writers_of
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.security import EVERYBODY
from tests.brokers.stage import PARTITIONS
from tests.groups.kinds import OLD
from tests.groups.shared import Shared

pytestmark = pytest.mark.parametrize("kind", OLD, ids=lambda kind: kind.name, indirect=True)


def guarded(shared: Shared, folder: Path) -> Shared:
    """Its runs log in, and what they make is theirs."""
    (folder / "password").write_text("of-znodes")
    login = {"scheme": "digest", "username": "etl", "password": f"${{file:{folder}/password}}"}
    shared.pipeline.settings["zookeeper"] = {
        **shared.pipeline.settings["zookeeper"],
        "auth": login,
        "acl": "creator",
    }
    return shared


def test_old_consumers_join_rebalance_and_commit_during_runs_under_acl_creator(
    make: Callable[..., Shared], tmp_path: Path
) -> None:
    shared = guarded(make(), tmp_path)
    shared.send(8)
    shared.ran()
    shared.enter("a")
    shared.send(40)
    shared.others_read_the_rest()
    with shared.held_at("fetched") as run:
        shared.are_owned(a=PARTITIONS // 2, etl=PARTITIONS // 2)
        run.release("fetched")
        assert run.wait().code == 0
    shared.are_owned(a=PARTITIONS)
    shared.enter("b")
    shared.are_owned(a=PARTITIONS // 2, b=PARTITIONS // 2)
    shared.exit("a")
    shared.ran()
    shared.send(8)
    shared.others_read_the_rest()
    with ZooKeeper(shared.pipeline.cluster.zookeeper_connect) as stranger:
        kept = writers_of(stranger, kept_by(stranger, shared.pipeline.group, "clicks"))
        group = f"/consumers/{shared.pipeline.group}"
        theirs = [f"{group}/{name}" for name in stranger.children(group) or () if name != "etl"]
        theirs += [f"{path}/{shared.pipeline.topic}" for path in theirs if not path.endswith("ids")]
        assert (
            EVERYBODY not in {who for writers in kept.values() for who in writers} and len(kept) > 3
        )
        assert set(writers_of(stranger, [*theirs, f"{group}/etl"]).values()) == {
            frozenset({EVERYBODY})
        }
    shared.end()
