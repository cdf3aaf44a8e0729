"""`etl init`: a first conf for topics of a cluster that is asked. Each key is written with why it
is so; no file is written over.

Here is who is asked; what is chosen is in `conf_choices`, how a conf is written in `conf_text`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.commands.conf_choices import (
    TOPICS_NAMED,
    Asked,
    Seen,
    choose,
    proposed,
    proposed_for_zookeeper,
)
from etl.commands.conf_text import Chosen, conf_text
from etl.decide.reconcile import refuse_missing_topics, refuse_topic_that_reads_as_null
from etl.decide.table_rules import refusal_of
from etl.errors import EtlError, NeedsDecision, NotKafka, SettingsError, WrongChroot
from etl.io.brokers.cluster import Cluster, chosen_topics
from etl.io.delta.scan import rows_of_nobody
from etl.io.delta.table import open_table
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.registry import read_cluster_id, read_registrations
from etl.io.zookeeper.session import ZooKeeper
from etl.kafka.messages import ClusterMetadata
from etl.ledger.paths import BROKER_IDS
from etl.ledger.registrations import parse_endpoints
from etl.model.partitions import BrokerFamily
from etl.run.discovery import Discovery
from etl.settings.choices import folder_of
from etl.settings.load import changed, load_settings, parse_settings
from etl.settings.schema import SCHEMA_FILE, conf_schema
from etl.settings.sections import Settings

_TOLD_WITHIN_S = 5.0
_PLACES_LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class FirstConf:
    """The file that was written, and what is in it."""

    path: str
    schema: str
    chosen: tuple[Chosen, ...]

    def as_json(self) -> dict[str, Any]:
        """The document of `etl init --json`."""
        return {
            "conf": self.path,
            "schema": self.schema,
            "chosen": [{"key": one.key, "value": one.value, "why": one.why} for one in self.chosen],
        }


def first_conf(asked: Asked) -> FirstConf:
    """Ask, choose, write. Raises SettingsError for a file that is there and for what only a person
    can know, and what brokers, ZooKeeper and a table raise; then no file is written."""
    path = asked.path
    if os.path.lexists(path):
        raise SettingsError(
            "there is a file already, and none is written over",
            path=path,
            check="--out: another file; or remove this one",
        )
    chosen = choose(asked, look(asked))
    schema = path.parent / SCHEMA_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, conf_text(chosen))
        if not schema.exists():
            schema.write_text(json.dumps(conf_schema(), indent=2) + "\n")
    except OSError as error:
        what, check = f"the conf cannot be written: {error.strerror}", "--out, and its folder"
        raise SettingsError(what, path=error.filename or path, check=check) from error
    return FirstConf(str(path), str(schema), chosen)


def _write(path: Path, text: str) -> None:
    """A file that is no conf after all does not stay."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    try:
        load_settings(path)
    except SettingsError:
        path.unlink()
        raise


def look(asked: Asked) -> Seen:
    """Ask ZooKeeper, the brokers and the table's folder. Nothing is changed."""
    if not asked.zookeeper:
        what = "a pipeline keeps its plans and offsets in a ZooKeeper, and no broker tells of one for that"
        check = "--zookeeper host:port/chroot; for a cluster without ZooKeeper (KRaft) one of your own, beside --bootstrap"
        raise SettingsError(what, check=check)
    settings = _settings(asked, BrokerFamily.KAFKA)
    table = open_table(
        os.path.abspath(folder)
        if (folder := folder_of(asked.table)) is not None
        else settings.table.path
    )
    with _entered(asked, settings) as zookeeper:
        if asked.bootstrap is None:
            settings = _settings(asked, _dialect_in(zookeeper))
        group = ConsumerGroup(zookeeper, settings.group, physical=settings.source.is_physical)
        with (
            _told_what_to_say(asked, zookeeper),
            Discovery(settings, zookeeper).open_cluster() as cluster,
        ):
            told = cluster.describe_once_told(None, wait_s=_TOLD_WITHIN_S)
            ours = _ours(settings, told, bool(asked.topics))
            newest = PlanLedger(zookeeper, settings.group, settings.pipeline).read_ledger().newest
            in_zookeeper = (
                None
                if asked.bootstrap or settings.source.is_physical
                else read_cluster_id(zookeeper)
            )
            return Seen(
                settings.source.dialect,
                told.cluster_id or in_zookeeper,
                {name: len(topic.partitions) for name, topic in sorted(ours.topics.items())},
                _offsets(cluster, settings, ours),
                len(told.brokers),
                len(group.logs_with_offsets(settings.source.topics.admits)),
                newest.number if newest else None,
                table.version() if table else None,
                _rows_before(settings, ours.topics) if table and newest is None else None,
            )


def _rows_before(settings: Settings, topics: Collection[str]) -> NeedsDecision | None:
    """Why the first run would stop at rows of these topics that the table holds; None if it holds
    none.
    """
    folder = folder_of(settings.table.path)
    path = settings.table.path if folder is None else os.path.abspath(folder)
    held = rows_of_nobody(path, topics, physical=settings.source.is_physical)
    table = open_table(path) if held else None
    return refusal_of(held, table.version()) if held and table else None


@contextlib.contextmanager
def _entered(asked: Asked, settings: Settings) -> Iterator[ZooKeeper]:
    """The session. Where the way in is not said, the error has the words by which it is said."""
    timeout_s, access = settings.zookeeper.connect_timeout_s, settings.zookeeper.access
    with contextlib.ExitStack() as session:
        try:
            zookeeper = session.enter_context(
                ZooKeeper(asked.zookeeper, connect_timeout_s=timeout_s, access=access)
            )
        except EtlError as error:
            key = str(error.where.get("key"))
            if not key.startswith("zookeeper.") or any(
                one.key.startswith("zookeeper.") for one in asked.keys
            ):
                raise
            check = f"{error.check}. Of etl init: {proposed_for_zookeeper(key)}"
            raise type(error)(error.what, check=check, **error.where) from error
        yield zookeeper


@contextlib.contextmanager
def _told_what_to_say(asked: Asked, zookeeper: ZooKeeper) -> Iterator[None]:
    """Where the way in is not said, or is another one: with the words by which it is said. No
    secret is among them.
    """
    try:
        yield
    except SettingsError as error:
        is_way_in = isinstance(error, NotKafka) or str(error.where.get("key")).startswith(
            ("source.security", "source.listener")
        )
        if not is_way_in or any(one.key == "source.security.protocol" for one in asked.keys):
            raise
        there = (
            []
            if asked.bootstrap
            else [
                listener
                for payload in read_registrations(zookeeper, BrokerFamily.KAFKA).values()
                for listener in parse_endpoints(payload)
            ]
        )
        check = f"{error.check}. Of etl init: {proposed(there)}"
        raise type(error)(error.what, check=check, **error.where) from error


def _settings(asked: Asked, dialect: BrokerFamily) -> Settings:
    """As a conf would say it, to ask by."""
    return parse_settings(
        changed(
            {
                "version": 1,
                "pipeline": asked.name,
                "group": asked.group or f"etl-{asked.name}",
                "cluster": asked.cluster or asked.name,
                "zookeeper": {"connect": asked.zookeeper},
                "table": {"path": asked.table},
                "source": {
                    "dialect": dialect.value,
                    "topics": {"allow": list(asked.topics) or [".*"]},
                    **({"bootstrap": asked.bootstrap} if asked.bootstrap else {}),
                },
            },
            asked.keys,
        )
    )


def _dialect_in(zookeeper: ZooKeeper) -> BrokerFamily:
    try:
        read_registrations(zookeeper, BrokerFamily.KAFKA)
    except WrongChroot as error:
        raise WrongChroot(
            error.what, check=_elsewhere(zookeeper) or error.check, **error.where
        ) from error
    except SettingsError as error:
        if error.where.get("key") != "source.dialect":
            raise
        read_registrations(zookeeper, BrokerFamily.JAFKA)
        return BrokerFamily.JAFKA
    return BrokerFamily.KAFKA


def _elsewhere(zookeeper: ZooKeeper) -> str:
    """Where else in this ZooKeeper brokers are registered, as what to write instead; the root and
    what is right below it are looked at.
    """
    servers = zookeeper.connect.partition("/")[0]
    with contextlib.suppress(SettingsError), zookeeper.at_root() as whole:
        places = [
            "",
            *(f"/{name}" for name in sorted(whole.children("/") or ())[:_PLACES_LOOKED_AT]),
        ]
        found = [
            place or "/" for place in places if whole.children(f"{place}{BROKER_IDS}") is not None
        ]
        if found:
            return f"the chroot: brokers are registered under {', '.join(found)}; --zookeeper {servers}{found[0].rstrip('/')}"
    return ""


def _ours(settings: Settings, told: ClusterMetadata, are_said: bool) -> ClusterMetadata:
    there = tuple(sorted(name for name, topic in told.topics.items() if not topic.is_internal))
    if not are_said:
        raise SettingsError(
            "it is not said which topics are to be read",
            check=f"--topic, once for each; {_named(there)}",
        )
    ours = chosen_topics(told, settings.source.topics)
    refuse_missing_topics(settings, ours.topics, lambda: there)
    refuse_topic_that_reads_as_null(settings, ours.topics)
    if not ours.topics:
        raise SettingsError(
            f"no topic matches {', '.join(settings.source.topics.allow)}",
            check=f"--topic; {_named(there)}",
        )
    return ours


def _named(there: Sequence[str]) -> str:
    more = f" and {len(there) - TOPICS_NAMED} more" if len(there) > TOPICS_NAMED else ""
    return (
        f"there are {', '.join(there[:TOPICS_NAMED])}{more}"
        if there
        else "the cluster has none yet"
    )


def _offsets(cluster: Cluster, settings: Settings, ours: ClusterMetadata) -> int:
    logs = [partition.log for topic in ours.topics.values() for partition in topic.partitions]
    found = cluster.extents(
        logs, isolation=settings.source.isolation, wait_for_leader_s=0, metadata=ours
    )
    return sum(extent.end_offset - extent.log_start_offset for extent in found.extents.values())
