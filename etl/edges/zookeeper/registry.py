"""The cluster's registry in ZooKeeper: which brokers are there, and what the cluster is called."""

from __future__ import annotations

from collections.abc import Iterable

from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import WrongChroot, ZooKeeperUnreachable
from etl.model.logs import Broker
from etl.protocol.zookeeper.paths import BROKER_IDS, BROKER_TOPICS, CLUSTER_ID, DELETED_TOPICS
from etl.protocol.zookeeper.payloads import CREATION_ID, parse_broker, parse_cluster_id


def read_creation_ids(zookeeper: ZooKeeper, topics: Iterable[str]) -> dict[str, str]:
    """What stands for the ids of topics whose brokers tell none: a topic that is made again has another one.

    Topics without a znode are left out (a cluster that keeps them elsewhere).
    """
    wanted = sorted(topics)

    def ask() -> dict[str, str]:
        asked = [zookeeper.client.exists_async(f"{BROKER_TOPICS}/{topic}") for topic in wanted]
        stats = {topic: answer.get() for topic, answer in zip(wanted, asked, strict=True)}
        return {topic: f"{CREATION_ID}{stat.czxid:x}" for topic, stat in stats.items() if stat is not None}

    found: dict[str, str] = zookeeper.guarded(lambda: zookeeper.client.retry(ask))
    return found


def read_brokers(zookeeper: ZooKeeper) -> tuple[Broker, ...]:
    """The brokers registered under our chroot, in order of id. Raises WrongChroot when there is no cluster there."""
    ids = zookeeper.children(BROKER_IDS)
    if ids is None:
        what = f"there is no Kafka cluster under {zookeeper.chroot or '/'}: no {BROKER_IDS}"
        check = "the chroot at the end of zookeeper.connect; for a cluster without ZooKeeper give source.bootstrap"
        raise WrongChroot(what, connect=zookeeper.connect, check=check)
    payloads = zookeeper.read_all([f"{BROKER_IDS}/{i}" for i in ids])
    found = (parse_broker(i, p[0]) for i, p in zip(ids, payloads, strict=True) if p)
    brokers = tuple(sorted(b for b in found if b))
    if not brokers:
        what = f"none of the {len(ids)} registered brokers has a PLAINTEXT endpoint" if ids else "no broker is registered"
        raise ZooKeeperUnreachable(what, connect=zookeeper.connect, check="that the brokers run, or give source.bootstrap")
    return brokers


def read_topics(zookeeper: ZooKeeper) -> list[str]:
    """Topics that are registered and not about to be deleted; none where the cluster keeps them elsewhere (KRaft)."""
    there = zookeeper.children(BROKER_TOPICS) or ()
    gone = set(zookeeper.children(DELETED_TOPICS) or ()) if there else set()
    return sorted(set(there) - gone)


def read_cluster_id(zookeeper: ZooKeeper) -> str | None:
    """Kafka's cluster id (0.10.1 and later), or None."""
    found = zookeeper.read(CLUSTER_ID)
    return parse_cluster_id(found[0]) if found else None
