"""What others may do to znodes."""

from __future__ import annotations

from collections.abc import Iterator

from kazoo.client import KazooClient

from tests.networks.secured import CHROOT, Secured
from tests.system.driving import Pipeline

Rights = frozenset[tuple[str, str, int]]
EVERYBODY: Rights = frozenset({("world", "anyone", 31)})


def guarded_for(*who: tuple[str, str]) -> Rights:
    """These do all, and everybody reads."""
    return frozenset({("world", "anyone", 1), *((scheme, name, 31) for scheme, name in who)})


def below(client: KazooClient, path: str) -> Iterator[str]:
    """The znode and all below it."""
    yield path
    for name in client.get_children(path):
        yield from below(client, f"{path}/{name}")


def rights(secured: Secured, pipeline: Pipeline) -> tuple[set[Rights], set[Rights]]:
    """ACLs of what the group's pipelines keep, and of what its consumers share."""
    kept, shared = set[Rights](), set[Rights]()
    with secured.zookeeper.entered(chroot=CHROOT) as stranger:
        for path in below(stranger, f"/consumers/{pipeline.group}"):
            found = frozenset(
                (acl.id.scheme, acl.id.id, acl.perms) for acl in stranger.get_acls(path)[0]
            )
            (kept if path.count("/") > 3 and path.split("/")[3] == "etl" else shared).add(found)
    return kept, shared
