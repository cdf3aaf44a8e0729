"""How is a first conf written?

`etl init` asks the brokers, chooses keys by a pure function, and writes each with a comment that
gives the reason. Existing files are not overwritten.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.decide.reconcile import reject_missing_topics, reject_null_partition_value
from etl.decide.table_rules import error_of
from etl.errors import EtlError, NeedsDecision, NotKafka, SettingsError, WrongChroot
from etl.io.brokers.cluster import Cluster, chosen_topics
from etl.io.delta.scan import unaccounted_rows
from etl.io.delta.table import open_table
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.registry import read_cluster_id, read_registrations
from etl.io.zookeeper.session import ZooKeeper
from etl.kafka.messages import ClusterMetadata
from etl.ledger.paths import BROKER_IDS
from etl.ledger.registrations import parse_endpoints
from etl.model.partitions import BrokerFamily
from etl.model.security import parse_reference
from etl.report.describe import counted
from etl.run.discovery import Discovery
from etl.settings.choices import folder_of
from etl.settings.load import Change, changed, load_settings, parse_settings
from etl.settings.schema import SCHEMA_FILE, conf_schema
from etl.settings.secrets import FILE_KEYS, is_secret
from etl.settings.sections import Settings

_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Chosen:
    """One key of a conf (`source.topics`), its value, and why it is so."""

    key: str
    value: Any
    why: str


def conf_text(chosen: Sequence[Chosen]) -> str:
    """The file. Keys of one section must follow one another."""
    return "\n".join(_lines(chosen)) + "\n"


def _lines(chosen: Sequence[Chosen]) -> Iterator[str]:
    yield f"# yaml-language-server: $schema={SCHEMA_FILE}"
    yield "# Written by `etl init`. `etl conf schema` says what other keys there are; `etl doctor CONF` looks at all that a run needs."
    above: list[str] = []
    for one in chosen:
        *sections, name = one.key.split(".")
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                yield f"{'  ' * depth}{section}:"
        above, indent = sections, "  " * len(sections)
        yield from (f"{indent}# {line}" for line in textwrap.wrap(one.why, _WIDTH - len(indent)))
        yield f"{indent}{name}: {json.dumps(one.value, ensure_ascii=False)}"


TOPICS_NAMED = 50
"""Number of topics named in a text."""
_TAKEN = ("source.", "zookeeper.", "table.")
_CHOSEN = frozenset(
    {
        "zookeeper.connect",
        "source.broker_type",
        "source.bootstrap_servers",
        "source.topics",
        "source.starting_offsets",
        "source.on_data_loss",
        "table.path",
    }
)
_BEST = ("SASL_SSL", "SSL", "SASL_PLAINTEXT")
"""Protocols by preference."""
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class InitRequest:
    """What a person gives; the rest is found out. `zookeeper` and `bootstrap` as in a conf."""

    zookeeper: str
    bootstrap: str | None
    topics: tuple[str, ...]
    table: str
    """Seen from the working directory."""
    out: Path | None = None
    pipeline: str | None = None
    group: str | None = None
    cluster: str | None = None
    keys: tuple[Change, ...] = ()
    """Keys of the conf, used to connect and written as they are."""

    def __post_init__(self) -> None:
        for one in self.keys:
            if one.key in _CHOSEN or not one.key.startswith(_TAKEN):
                is_chosen = one.key in _CHOSEN
                if is_chosen:
                    message = "it is found out, or has an option"
                else:
                    message = "only keys of source, zookeeper and table are asked by"
                action = "Run `etl init --help`; others are written into the conf afterwards"
                raise SettingsError(f"--set {one.key}: {message}", key=one.key, action=action)

    @property
    def name(self) -> str:
        """Return the pipeline's name: as given, else the file's, the one topic's or the table
        directory's.
        """
        if len(self.topics) == 1 and re.fullmatch(r"[\w.-]+", self.topics[0]):
            topic = self.topics[0]
        else:
            topic = None
        found = (
            self.pipeline
            or (self.out and self.out.stem)
            or topic
            or self.table.rstrip("/").rpartition("/")[2]
        )
        return _NO_NAME.sub("-", found).strip("-") or "pipeline"

    @property
    def path(self) -> Path:
        """Return the path of the conf."""
        return self.out or Path("conf") / f"{self.name}.yaml"


@dataclass(frozen=True, slots=True)
class InitFindings:
    """What was found."""

    dialect: BrokerFamily
    cluster_id: str | None
    topics: dict[str, int]
    """The requested topics with their partitions."""
    offsets: int
    """Offsets (on Jafka: bytes) that they hold now, if known."""
    brokers: int
    committed: int
    """Partitions of which the group has an offset."""
    newest_plan: int | None
    table_version: int | None
    rows_before: NeedsDecision | None = None
    """Why the first run would load nothing: the table holds rows of these topics."""


def choose(request: InitRequest, seen: InitFindings) -> tuple[Chosen, ...]:
    """The keys of the conf, in its order, each with why. Raises SettingsError for a name that the
    brokers make pointless.
    """
    chosen = _found(request, seen)
    given = [
        Chosen(one.key, _as_conf_sees(one, request), "as it was said")
        for one in sorted(request.keys, key=lambda one: one.key)
    ]
    sections = list(dict.fromkeys(one.key.partition(".")[0] for one in chosen))
    return tuple(
        one
        for section in sections
        for one in (*chosen, *given)
        if one.key.partition(".")[0] == section
    )


def _found(request: InitRequest, seen: InitFindings) -> tuple[Chosen, ...]:
    is_jafka = seen.dialect is BrokerFamily.JAFKA
    unit = "byte" if is_jafka else "offset"
    topics = ", ".join(
        f"{name} ({counted(partitions, 'partition')})"
        for name, partitions in list(seen.topics.items())[:TOPICS_NAMED]
    )
    return (
        Chosen(
            "pipeline",
            request.name,
            "names the plans in ZooKeeper and in the table; keep it as it is"
            + (
                f". Plan {seen.newest_plan} of this name is there already: the conf goes on with it"
                if seen.newest_plan
                else ""
            ),
        ),
        *_cluster(request, seen),
        Chosen(
            "group",
            request.group or f"etl-{request.name}",
            "whose committed offsets are read and moved"
            + (
                f"; it has offsets of {counted(seen.committed, 'partition')}, where the first run goes on"
                if seen.committed
                else "; it has none of these topics yet"
            ),
        ),
        Chosen(
            "zookeeper.connect",
            request.zookeeper,
            "the ledger is kept here"
            + ("" if request.bootstrap else ", and the brokers are registered here"),
        ),
        Chosen(
            "source.broker_type",
            seen.dialect.value,
            f"{counted(seen.brokers, 'broker')}, "
            + ("registered as Jafka and Kafka 0.7 do" if is_jafka else "of Kafka 0.8 or later"),
        ),
        *_bootstrap(request),
        Chosen(
            "source.topics",
            list(request.topics),
            f"regular expressions for whole names; now they match {topics}",
        ),
        Chosen(
            "source.starting_offsets",
            "earliest",
            f"the first run loads what the logs hold, now {counted(seen.offsets, unit)}; latest: only what comes",
        ),
        Chosen(
            "source.on_data_loss",
            "fail",
            "offsets that expire before they are read stop the run; skip: go on behind them, loudly",
        ),
        Chosen(
            "table.path",
            _seen_from_conf(request),
            "seen from this file; "
            + (
                "no table is there yet, the first run makes it"
                if seen.table_version is None
                else f"a Delta table is there, at version {seen.table_version}: {_appended(seen)}"
            ),
        ),
        Chosen(
            "report.path",
            os.path.relpath("reports", request.path.parent),
            "each run leaves a report there",
        ),
    )


def _appended(seen: InitFindings) -> str:
    if seen.rows_before is None:
        return "rows are appended to it"
    return f"the first run stops: {seen.rows_before.message}. {seen.rows_before.action}"


def _bootstrap(request: InitRequest) -> list[Chosen]:
    if request.bootstrap:
        return [
            Chosen(
                "source.bootstrap_servers",
                request.bootstrap,
                "brokers are found here, not by ZooKeeper",
            )
        ]
    return []


def _cluster(request: InitRequest, seen: InitFindings) -> list[Chosen]:
    if seen.cluster_id is None:
        return [
            Chosen(
                "source.assume_cluster_id",
                request.cluster or request.name,
                "needed: these brokers have no cluster id. Any name does, and it must stay",
            )
        ]
    if request.cluster:
        message = (
            f"The brokers tell the cluster's id, {seen.cluster_id}, and the pipeline goes by it"
        )
        raise SettingsError(message, key="source.assume_cluster_id", action="Remove the key")
    return []


def _seen_from_conf(request: InitRequest) -> str:
    folder = folder_of(request.table)
    return request.table if folder is None or os.path.isabs(folder) else _from_conf(folder, request)


def proposed(listeners: Sequence[tuple[str, str]]) -> str:
    """Return a proposal for `source.security` if brokers have these listeners (name, protocol) and
    none worked; without known listeners, a login with TLS.
    """
    best = next(
        (one for protocol in _BEST for one in listeners if one[1] == protocol), ("", _BEST[0])
    )
    words = [f"source.security.protocol={best[1]}"]
    if sum(protocol == best[1] for _, protocol in set(listeners)) > 1:
        words.append(f"source.listener={best[0]}")
    if best[1].startswith("SASL"):
        words += [
            "source.security.sasl.mechanism=MECHANISM",
            "source.security.sasl.username=NAME",
            "'source.security.sasl.password=${file:/PATH}'",
        ]
    if best[1].endswith("SSL"):
        words.append("source.security.tls.ca_file=PEM")
    if best[1].endswith("SSL"):
        without = " (without ca_file the system's authorities are trusted)"
    else:
        without = ""
    return f"{' '.join(f'--set {word}' for word in words)}{without}"


def proposed_for_zookeeper(key: str) -> str:
    """Return a proposal for `zookeeper.tls` or `zookeeper.auth`."""
    if key.startswith("zookeeper.tls"):
        words: tuple[str, ...] = ("zookeeper.tls.enabled=true", "zookeeper.tls.ca_file=PEM")
    else:
        words = (
            "zookeeper.auth.scheme=sasl",
            "zookeeper.auth.username=NAME",
            "'zookeeper.auth.password=${file:/PATH}'",
        )
    return " ".join(f"--set {word}" for word in words)


def _as_conf_sees(change: Change, request: InitRequest) -> Any:
    """A file that is named from where the command runs, as the conf names it from its own folder;
    also one that a reference names.
    """
    if not isinstance(change.value, str):
        return change.value
    reference = parse_reference(change.value) if is_secret(change.key) else None
    if reference is not None and reference.kind == "file":
        return f"${{file:{_from_conf(reference.name, request)}}}"
    return _from_conf(change.value, request) if change.key in FILE_KEYS else change.value


def _from_conf(path: str, request: InitRequest) -> str:
    return path if os.path.isabs(path) else os.path.relpath(path, request.path.parent)


_TOLD_WITHIN_S = 5.0
_PLACES_LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class FirstConf:
    """The written file and its content."""

    path: str
    schema: str
    chosen: tuple[Chosen, ...]

    def as_json(self) -> dict[str, Any]:
        """The document of `etl init --json`."""
        return {
            "conf": self.path,
            "schema": self.schema,
            "chosen": [
                {"key": one.key, "value": one.value, "reason": one.why} for one in self.chosen
            ],
        }


def first_conf(request: InitRequest) -> FirstConf:
    """Ask, choose, write. Raises SettingsError for a file that is there and for what only a person
    can know, and what brokers, ZooKeeper and a table raise; then no file is written."""
    path = request.path
    if os.path.lexists(path):
        raise SettingsError(
            "There is a file already, and none is written over",
            path=path,
            action="Pass another file with --output, or remove this one",
        )
    chosen = choose(request, look(request))
    schema = path.parent / SCHEMA_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, conf_text(chosen))
        if not schema.exists():
            schema.write_text(json.dumps(conf_schema(), indent=2) + "\n")
    except OSError as error:
        message, action = (
            f"The conf cannot be written: {error.strerror}",
            "Check --output and its directory",
        )
        raise SettingsError(message, path=error.filename or path, action=action) from error
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


def look(request: InitRequest) -> InitFindings:
    """Ask ZooKeeper, the brokers and the table's folder. Nothing is changed."""
    if not request.zookeeper:
        message = "A pipeline keeps its plans and offsets in a ZooKeeper, and no broker tells of one for that"
        action = "Pass --zookeeper host:port/chroot; for a cluster without ZooKeeper (KRaft) one of your own, beside --bootstrap-servers"
        raise SettingsError(message, action=action)
    settings = _settings(request, BrokerFamily.KAFKA)
    table = open_table(
        os.path.abspath(folder)
        if (folder := folder_of(request.table)) is not None
        else settings.table.path
    )
    with _entered(request, settings) as zookeeper:
        if request.bootstrap is None:
            settings = _settings(request, _dialect_in(zookeeper))
        group = ConsumerGroup(zookeeper, settings.group.id, physical=settings.source.is_physical)
        with (
            _describe_missing_security(request, zookeeper),
            Discovery(settings, zookeeper).open_cluster() as cluster,
        ):
            metadata = cluster.describe_when_known(None, wait_s=_TOLD_WITHIN_S)
            ours = _ours(settings, metadata, bool(request.topics))
            newest = (
                PlanLedger(zookeeper, settings.group.id, settings.pipeline).read_ledger().newest
            )
            if request.bootstrap or settings.source.is_physical:
                in_zookeeper = None
            else:
                in_zookeeper = read_cluster_id(zookeeper)
            return InitFindings(
                settings.source.broker_type,
                metadata.cluster_id or in_zookeeper,
                {name: len(topic.partitions) for name, topic in sorted(ours.topics.items())},
                _offsets(cluster, settings, ours),
                len(metadata.brokers),
                len(group.logs_with_offsets(settings.source.topic_filter.admits)),
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
    held = unaccounted_rows(path, topics, physical=settings.source.is_physical)
    table = open_table(path) if held else None
    return error_of(held, table.version()) if held and table else None


@contextlib.contextmanager
def _entered(request: InitRequest, settings: Settings) -> Iterator[ZooKeeper]:
    """Open the session. If security settings are missing, the error has the keys to add."""
    timeout_s, access = settings.zookeeper.session_timeout_s, settings.zookeeper.access
    with contextlib.ExitStack() as session:
        try:
            zookeeper = session.enter_context(
                ZooKeeper(request.zookeeper, connect_timeout_s=timeout_s, access=access)
            )
        except EtlError as error:
            key = str(error.where.get("key"))
            if not key.startswith("zookeeper.") or any(
                one.key.startswith("zookeeper.") for one in request.keys
            ):
                raise
            action = f"{error.action}. Of etl init: {proposed_for_zookeeper(key)}"
            raise type(error)(error.message, action=action, **error.where) from error
        yield zookeeper


@contextlib.contextmanager
def _describe_missing_security(request: InitRequest, zookeeper: ZooKeeper) -> Iterator[None]:
    """Return the error with the security keys to add, without secrets."""
    try:
        yield
    except SettingsError as error:
        is_way_in = isinstance(error, NotKafka) or str(error.where.get("key")).startswith(
            ("source.security", "source.listener")
        )
        if not is_way_in or any(one.key == "source.security.protocol" for one in request.keys):
            raise
        if request.bootstrap:
            there = []
        else:
            there = [
                listener
                for payload in read_registrations(zookeeper, BrokerFamily.KAFKA).values()
                for listener in parse_endpoints(payload)
            ]
        action = f"{error.action}. Of etl init: {proposed(there)}"
        raise type(error)(error.message, action=action, **error.where) from error


def _settings(request: InitRequest, dialect: BrokerFamily) -> Settings:
    """Return settings as of a conf, to connect with."""
    return parse_settings(
        changed(
            {
                "pipeline": request.name,
                "group": request.group or f"etl-{request.name}",
                "zookeeper": {"connect": request.zookeeper},
                "table": {"path": request.table},
                "source": {
                    "broker_type": dialect.value,
                    "assume_cluster_id": request.cluster or request.name,
                    "topics": list(request.topics) or [".*"],
                    "bootstrap_servers": request.bootstrap or None,
                },
            },
            request.keys,
        )
    )


def _dialect_in(zookeeper: ZooKeeper) -> BrokerFamily:
    try:
        read_registrations(zookeeper, BrokerFamily.KAFKA)
    except WrongChroot as error:
        raise WrongChroot(
            error.message, action=_elsewhere(zookeeper) or error.action, **error.where
        ) from error
    except SettingsError as error:
        if error.where.get("key") != "source.broker_type":
            raise
        read_registrations(zookeeper, BrokerFamily.JAFKA)
        return BrokerFamily.JAFKA
    return BrokerFamily.KAFKA


def _elsewhere(zookeeper: ZooKeeper) -> str:
    """Return other paths of this ZooKeeper with registered brokers; the root and its children are
    searched.
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


def _ours(settings: Settings, metadata: ClusterMetadata, are_said: bool) -> ClusterMetadata:
    there = tuple(sorted(name for name, topic in metadata.topics.items() if not topic.is_internal))
    if not are_said:
        raise SettingsError(
            "It is not said which topics are to be read",
            action=f"Pass --topic, once for each; {_named(there)}",
        )
    ours = chosen_topics(metadata, settings.source.topic_filter)
    reject_missing_topics(settings, ours.topics, lambda: there)
    reject_null_partition_value(settings, ours.topics)
    if not ours.topics:
        raise SettingsError(
            f"No topic matches {', '.join(settings.source.topics)}",
            action=f"Pass --topic; {_named(there)}",
        )
    return ours


def _named(there: Sequence[str]) -> str:
    more = f" and {len(there) - TOPICS_NAMED} more" if len(there) > TOPICS_NAMED else ""
    if there:
        return f"there are {', '.join(there[:TOPICS_NAMED])}{more}"
    return "the cluster has none yet"


def _offsets(cluster: Cluster, settings: Settings, ours: ClusterMetadata) -> int:
    logs = [partition.log for topic in ours.topics.values() for partition in topic.partitions]
    found = cluster.extents(
        logs, isolation=settings.source.isolation_level, wait_for_leader_s=0, metadata=ours
    )
    return sum(extent.end_offset - extent.log_start_offset for extent in found.extents.values())
