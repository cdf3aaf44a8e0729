"""Who may change what a pipeline keeps: as it is, and as the conf asks for.

An ACL stays as its znode was made, whatever later sessions ask for, and holds for that znode alone;
who may delete a znode is said by the ACL of the one above it (ZooKeeper Programmer's Guide,
"ZooKeeper access control using ACLs").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from etl.edges.zookeeper.in_flight import children_of_each
from etl.edges.zookeeper.session import ZooKeeper
from etl.ledger.paths import GroupPaths, PipelinePaths
from etl.model.security import EVERYBODY
from etl.model.snapshot import backfill_pipeline


def kept_by(zookeeper: ZooKeeper, group: str, pipeline: str) -> list[str]:
    """Every znode of a pipeline and of the backfills beside it, each behind the one above it; none
    where there is no such pipeline.
    """
    beside = backfill_pipeline(pipeline, "")
    names = sorted(zookeeper.children(GroupPaths(group).pipelines) or ())
    found = level = [
        PipelinePaths(group, name).root
        for name in names
        if name == pipeline or name.startswith(beside)
    ]
    while level:
        level = [
            f"{path}/{name}"
            for path, names in zip(level, children_of_each(zookeeper, level), strict=True)
            for name in sorted(names)
        ]
        found = [*found, *level]
    return found


def writers_of(zookeeper: ZooKeeper, paths: Sequence[str]) -> dict[str, frozenset[str]]:
    """Who may do more to each znode than read it, as `scheme:id`; EVERYBODY among them: there is no
    need to be anybody. Without those that are gone, or whose ACL is not shown to us."""
    client = zookeeper.client

    def ask() -> list[list[ACL] | None]:
        return [_answer(asked) for asked in [client.get_acls_async(path) for path in paths]]

    asked = zip(paths, zookeeper.guarded(lambda: client.retry(ask)), strict=True)
    return {
        path: frozenset(_named(acl) for acl in acls if acl.perms & ~Permissions.READ)
        for path, acls in asked
        if acls
    }


def set_as_asked(zookeeper: ZooKeeper, paths: Sequence[str]) -> int:
    """Give each znode the ACL that it would be made with now; how many of them there are. Raises
    PermissionRefused, which names the first one whose ACL we may not change; others may have theirs
    by then."""
    client, given = zookeeper.client, 0
    for path, asked in [(path, client.set_acls_async(path, client.acl_of(path))) for path in paths]:
        try:
            zookeeper.guarded(asked.get, path)
        except NoNodeError:
            continue
        given += 1
    return given


def _answer(asked: Any) -> list[ACL] | None:
    try:
        return list(asked.get()[0])
    except (NoNodeError, NoAuthError):
        return None


def _named(acl: ACL) -> str:
    return EVERYBODY if acl.id == ANYONE_ID_UNSAFE else f"{acl.id.scheme}:{acl.id.id}"
