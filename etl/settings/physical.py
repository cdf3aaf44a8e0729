"""What a conf cannot ask for where offsets are byte positions (Jafka, Kafka 0.7), and why: such
brokers tell and keep less.

Owns the sentences. A key that was left out has a default that fits, see `source`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from etl.errors import SettingsError
from etl.model.partitions import Isolation, OffsetsStorage
from etl.model.security import OPEN
from etl.settings.policies import OnNoLeader
from etl.settings.sections import Settings
from etl.settings.source import Timestamp

_REFUSED: Mapping[str, tuple[Callable[[Settings], bool], str]] = {
    "cluster": (
        lambda conf: conf.cluster is None,
        "is missing: such brokers have no cluster id, and plans and commits need a name for the cluster; give it one",
    ),
    "mirror_group": (
        lambda conf: conf.mirror_group is not None,
        "cannot be written: such brokers keep no offsets of groups; leave the key out",
    ),
    "offsets.storage": (
        lambda conf: conf.offsets.storage is not OffsetsStorage.ZOOKEEPER,
        "cannot be kafka or dual: such brokers keep no offsets of groups, and their consumers have them in ZooKeeper; leave the key out",
    ),
    "source.bootstrap": (
        lambda conf: conf.source.bootstrap is not None,
        "cannot be used: such a broker tells neither its id nor its topics; it must be registered in ZooKeeper (enable.zookeeper=true), "
        "and is found by zookeeper.connect; leave the key out",
    ),
    "source.broker_version": (
        lambda conf: conf.source.broker_version is not None,
        "has no meaning: these brokers have one way of being spoken to; leave the key out",
    ),
    "source.listener": (
        lambda conf: conf.source.listener is not None,
        "has no meaning: these brokers have one listener; leave the key out",
    ),
    "source.security": (
        lambda conf: conf.source.way_in != OPEN,
        "cannot be kept: these brokers know neither encryption nor logins; leave the key out",
    ),
    "source.start": (
        lambda conf: isinstance(conf.source.start, Timestamp),
        "cannot be a time: messages have none, and such a broker's search by time knows segments only and answers one too old; "
        "use earliest or latest",
    ),
    "source.isolation": (
        lambda conf: conf.source.isolation is not Isolation.READ_UNCOMMITTED,
        "cannot be read_committed: there are no transactions; leave the key out",
    ),
    "source.on_no_leader": (
        lambda conf: conf.source.on_no_leader is not OnNoLeader.SKIP,
        "cannot be fail: a partition is on one broker only, and one whose broker is away is always left for a later run; "
        "leave the key out",
    ),
    "source.compacted_topics": (
        lambda conf: bool(conf.source.compacted_topics),
        "has no meaning: there is no compaction; leave the key out",
    ),
    "limits.max_records_per_run": (
        lambda conf: conf.limits.max_records_per_run is not None,
        "cannot be kept: offsets are byte positions, from which no records can be counted; use limits.max_bytes_per_run",
    ),
    "table.partition_by": (
        lambda conf: "event_date" in conf.table.partition_by and conf.either_transform is None,
        "names event_date, which is made of the records' timestamps, and messages have none; name another column, "
        "or add a column `timestamp` by a transform",
    ),
}
"""Key -> whether the conf asks for it, and why that cannot be."""


def refuse_unfit(settings: Settings, path: str | None) -> None:
    """Raises SettingsError with all such keys of a conf whose logs are physical; `key` is that of
    the first one.
    """
    found = (
        {key: why for key, (asks, why) in _REFUSED.items() if asks(settings)}
        if settings.source.is_physical
        else {}
    )
    if found:
        dialect = f"where source.dialect is {settings.source.dialect.value}"
        said = "\n".join(f"{key} {why}" for key, why in found.items())
        what = (
            f"{dialect}, {said}"
            if len(found) == 1
            else f"{len(found)} keys do not fit {dialect}:\n{said}"
        )
        raise SettingsError(
            what, key=next(iter(found)), path=path, check="these keys, and source.dialect"
        )
