"""How does `etl init` write a first conf?

It observes ZooKeeper, the brokers and the table, chooses the keys by a pure function, and writes
each key with a comment that gives the reason.

Lives here: these steps, and the command-line keys that a rejected connection needs.
Not here: the keys of a conf and their defaults (etl/settings).
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
from etl.decide.table_rules import unplanned_rows_error
from etl.errors import EtlError, NeedsDecision, SettingsError, WrongChroot
from etl.io.brokers.cluster_requests import Cluster, chosen_topics
from etl.io.delta.offsets_of_rows import unaccounted_rows
from etl.io.delta.table_shape import open_table
from etl.io.report_files import write_whole
from etl.io.zookeeper.broker_registrations import (
    chroots_with_brokers,
    read_cluster_id,
    read_registrations,
)
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka.request_values import ClusterMetadata
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
"""Maximum length of a comment's line, with its indentation."""
TOPICS_NAMED = 50
"""Maximum number of topics named in a text."""
_SECTIONS = ("source.", "zookeeper.", "table.")
"""Sections of the keys that `--set` accepts."""
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
"""Keys of these sections that are chosen here or have an option."""
_PREFERRED_PROTOCOLS = ("SASL_SSL", "SSL", "SASL_PLAINTEXT")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_METADATA_WAIT_S = 5.0


# -- the request and the result


@dataclass(frozen=True, slots=True)
class InitRequest:
    """The options of `etl init`; `zookeeper` and `bootstrap` as in a conf."""

    zookeeper: str
    bootstrap: str | None
    topics: tuple[str, ...]
    table: str
    """A relative path is relative to the working directory."""
    out: Path | None = None
    pipeline: str | None = None
    group: str | None = None
    cluster: str | None = None
    keys: tuple[Change, ...] = ()
    """Further keys of the conf, used to connect and written unchanged."""

    def __post_init__(self) -> None:
        for change in self.keys:
            if change.key in _CHOSEN:
                message = "`etl init` chooses it, or has an option for it"
            elif not change.key.startswith(_SECTIONS):
                message = "only keys of source, zookeeper and table are accepted"
            else:
                continue
            raise SettingsError(
                f"--set {change.key}: {message}",
                key=change.key,
                action="Run `etl init --help` for the options. Add other keys to the conf "
                "afterwards",
            )

    @property
    def name(self) -> str:
        """Return the pipeline's name.

        By preference: the given name, the name of the file, of the only topic, of the table.
        """
        topic = None
        if len(self.topics) == 1 and re.fullmatch(r"[\w.-]+", self.topics[0]):
            topic = self.topics[0]
        file_name = None
        if self.out:
            file_name = self.out.stem
        table_name = self.table.rstrip("/").rpartition("/")[2]
        name = self.pipeline or file_name or topic or table_name
        # Topics may begin with these characters, names of pipelines may not.
        return _NOT_IN_NAMES.sub("-", name).rstrip("-").lstrip("._-") or "pipeline"

    @property
    def path(self) -> Path:
        """Return the path of the conf."""
        return self.out or Path("conf") / f"{self.name}.yaml"


@dataclass(frozen=True, slots=True)
class InitFindings:
    """What brokers, ZooKeeper and the table report."""

    dialect: BrokerFamily
    cluster_id: str | None
    topics: dict[str, int]
    """The requested topics with their number of partitions."""
    offsets: int
    """Number of offsets (on Jafka: bytes) that they hold now."""
    brokers: int
    committed: int
    """Number of partitions with a committed offset of the group."""
    newest_plan: int | None
    table_version: int | None
    rows_before: NeedsDecision | None = None
    """Why the first run would load nothing: the table holds rows of these topics."""


@dataclass(frozen=True, slots=True)
class ConfKey:
    """A key of the conf (`source.topics`), its value, and the reason."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class FirstConf:
    """The written file and its content."""

    path: str
    schema: str
    chosen: tuple[ConfKey, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl init --json`."""
        chosen = []
        for key in self.chosen:
            chosen.append({"key": key.key, "value": key.value, "reason": key.why})
        return {"path": self.path, "schema": self.schema, "chosen": chosen}


def write_first_conf(request: InitRequest) -> FirstConf:
    """Observe, choose the keys, and write the conf.

    Raises SettingsError for an existing file and for missing options, and the errors of brokers,
    ZooKeeper and table; no file is written then.
    """
    path = request.path
    if os.path.lexists(path):
        raise SettingsError(
            "The file exists, and is not overwritten",
            path=path,
            action="Pass another file with --output, or remove this one",
        )
    chosen = choose_keys(request, observe_servers(request))
    schema = path.parent / SCHEMA_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, conf_text(chosen))
        if not schema.exists():
            write_whole(schema, json.dumps(conf_schema(), indent=2) + "\n")
    except OSError as error:
        raise SettingsError(
            f"The conf cannot be written: {error.strerror}",
            path=error.filename or path,
            action="Check --output and its directory",
        ) from error
    return FirstConf(str(path), str(schema), chosen)


# -- the file


def conf_text(chosen: Sequence[ConfKey]) -> str:
    """Return the text of the file. Keys of one section must follow one another."""
    return "\n".join(_lines(chosen)) + "\n"


def _lines(chosen: Sequence[ConfKey]) -> Iterator[str]:
    yield f"# yaml-language-server: $schema={SCHEMA_FILE}"
    yield (
        "# Written by `etl init`. `etl conf schema` describes all keys; "
        "`etl doctor CONF` checks all that a run needs."
    )
    previous: list[str] = []
    for key in chosen:
        *sections, name = key.key.split(".")
        for depth, section in enumerate(sections):
            if previous[: depth + 1] != sections[: depth + 1]:
                yield f"{'  ' * depth}{section}:"
        previous = sections
        indent = "  " * len(sections)
        for line in textwrap.wrap(key.why, _WIDTH - len(indent)):
            yield f"{indent}# {line}"
        yield f"{indent}{name}: {json.dumps(key.value, ensure_ascii=False)}"


def _write(path: Path, text: str) -> None:
    """Write the conf, and remove it again if it is not valid. Raises SettingsError, OSError."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    try:
        load_settings(path)
    except SettingsError:
        path.unlink()
        raise


# -- choosing the keys


def choose_keys(request: InitRequest, seen: InitFindings) -> tuple[ConfKey, ...]:
    """Return the keys of the conf in the order of the file, each with its reason. No I/O.

    Raises SettingsError for a cluster name if the brokers report a cluster id.
    """
    by_section = dict[str, list[ConfKey]]()
    for key in (*_chosen_keys(request, seen), *_given_keys(request)):
        section = key.key.partition(".")[0]
        by_section.setdefault(section, []).append(key)
    keys = []
    for of_section in by_section.values():
        keys += of_section
    return tuple(keys)


def _given_keys(request: InitRequest) -> list[ConfKey]:
    keys = []
    for change in sorted(request.keys, key=lambda change: change.key):
        keys.append(ConfKey(change.key, _value_in_conf(change, request), "as given with --set"))
    return keys


def _chosen_keys(request: InitRequest, seen: InitFindings) -> Iterator[ConfKey]:
    unit = "offset"
    brokers = "of Kafka 0.8 or later"
    if seen.dialect is BrokerFamily.JAFKA:
        unit = "byte"
        brokers = "registered as Jafka and Kafka 0.7 do"

    why = "the name of the plans in ZooKeeper and in the table; do not change it"
    if seen.newest_plan:
        why = f"{why}. Plan {seen.newest_plan} of this name exists: runs continue after it"
    yield ConfKey("pipeline", request.name, why)

    yield from _cluster_key(request, seen)

    why = "it has none of these topics yet"
    if seen.committed:
        partitions = counted(seen.committed, "partition")
        why = f"it has offsets of {partitions}, where the first run continues"
    why = f"the consumer group, with the committed offsets of the pipeline; {why}"
    yield ConfKey("group", request.group or f"etl-{request.name}", why)

    why = "the ledger is stored here"
    if not request.bootstrap:
        why = f"{why}, and the brokers are registered here"
    yield ConfKey("zookeeper.connect", request.zookeeper, why)

    why = f"{counted(seen.brokers, 'broker')}, {brokers}"
    yield ConfKey("source.broker_type", seen.dialect.value, why)

    if request.bootstrap:
        why = "the brokers are found here, not in ZooKeeper"
        yield ConfKey("source.bootstrap_servers", request.bootstrap, why)

    named = []
    for topic, partitions_of_topic in list(seen.topics.items())[:TOPICS_NAMED]:
        named.append(f"{topic} ({counted(partitions_of_topic, 'partition')})")
    why = f"regular expressions for whole names; now they match {', '.join(named)}"
    yield ConfKey("source.topics", list(request.topics), why)

    why = (
        f"the first run loads all retained records, now {counted(seen.offsets, unit)}; "
        "latest: only new records"
    )
    yield ConfKey("source.starting_offsets", "earliest", why)

    why = (
        "offsets that expire before they are read stop the run; "
        "skip: continue after them, and report the loss"
    )
    yield ConfKey("source.on_data_loss", "fail", why)

    why = f"relative to this file; {_describe_table(seen)}"
    yield ConfKey("table.path", _table_in_conf(request), why)

    reports = os.path.relpath("reports", request.path.parent)
    yield ConfKey("report.path", reports, "each run writes a report there")


def _cluster_key(request: InitRequest, seen: InitFindings) -> list[ConfKey]:
    """Return the key that names a cluster without an id; empty for a cluster with an id."""
    if seen.cluster_id is None:
        why = (
            "required: these brokers have no cluster id. Any name works, and it must stay the same"
        )
        return [ConfKey("source.assume_cluster_id", request.cluster or request.name, why)]
    if request.cluster:
        raise SettingsError(
            f"The brokers report the cluster id {seen.cluster_id}, and the pipeline uses that",
            key="source.assume_cluster_id",
            action="Remove the key",
        )
    return []


def _describe_table(seen: InitFindings) -> str:
    if seen.table_version is None:
        return "the table does not exist yet, the first run creates it"
    exists = f"a Delta table exists, at version {seen.table_version}"
    if seen.rows_before is None:
        return f"{exists}: rows are appended to it"
    stops = f"{seen.rows_before.message}. {seen.rows_before.action}"
    return f"{exists}: the first run stops: {stops}"


# -- paths: the conf's are relative to its folder, the command's to the working directory


def _table_in_conf(request: InitRequest) -> str:
    folder = folder_of(request.table)
    if folder is None or os.path.isabs(folder):
        return request.table
    return _path_in_conf(folder, request)


def _value_in_conf(change: Change, request: InitRequest) -> Any:
    """Return the value of a key; the path of a file, also of a `${file:}`, relative to the conf."""
    if not isinstance(change.value, str):
        return change.value
    if is_secret(change.key):
        reference = parse_reference(change.value)
        if reference is not None and reference.kind == "file":
            return f"${{file:{_path_in_conf(reference.name, request)}}}"
    if change.key in FILE_KEYS:
        return _path_in_conf(change.value, request)
    return change.value


def _path_in_conf(path: str, request: InitRequest) -> str:
    if os.path.isabs(path):
        return path
    return os.path.relpath(path, request.path.parent)


# -- observing


def observe_servers(request: InitRequest) -> InitFindings:
    """Observe ZooKeeper, the brokers and the table. Nothing is changed."""
    if not request.zookeeper:
        raise SettingsError(
            "No ZooKeeper is given, and a pipeline stores its plans and offsets there",
            action="Pass --zookeeper host:port/chroot. For a cluster without ZooKeeper (KRaft), "
            "pass one of your own, and --bootstrap-servers",
        )
    settings = _settings(request, BrokerFamily.KAFKA)
    folder = folder_of(request.table)
    table_path = settings.table.path
    if folder is not None:
        table_path = os.path.abspath(folder)
    table = open_table(table_path)
    with _open_zookeeper(request, settings) as zookeeper:
        if request.bootstrap is None:
            settings = _settings(request, _find_broker_type(zookeeper))
        source = settings.source
        group = ConsumerGroup(zookeeper, settings.group.id, physical=source.is_physical)
        with (
            _describe_missing_security(request, zookeeper, source.broker_type),
            Discovery(settings, zookeeper).open_cluster() as cluster,
        ):
            metadata = cluster.describe_when_known(None, wait_s=_METADATA_WAIT_S)
            selected = _selected_topics(settings, metadata, is_given=bool(request.topics))
            ledger = PlanLedger(zookeeper, settings.group.id, settings.pipeline).read_ledger()
            id_in_zookeeper = None
            if not request.bootstrap and not source.is_physical:
                id_in_zookeeper = read_cluster_id(zookeeper)
            partitions = {}
            for name, topic in sorted(selected.topics.items()):
                partitions[name] = len(topic.partitions)
            offsets = _count_offsets(cluster, settings, selected)
            committed = len(group.partitions_with_offsets(source.topic_filter.admits))
            newest_plan = None
            if ledger.newest:
                newest_plan = ledger.newest.number
            table_version = None
            rows_before = None
            if table:
                table_version = table.version()
                if ledger.newest is None:
                    rows_before = _find_rows_before(settings, selected.topics)
            return InitFindings(
                settings.source.broker_type,
                metadata.cluster_id or id_in_zookeeper,
                partitions,
                offsets,
                len(metadata.brokers),
                committed,
                newest_plan,
                table_version,
                rows_before,
            )


def _settings(request: InitRequest, broker_type: BrokerFamily) -> Settings:
    """Return the settings of a conf with the given options, to connect with."""
    document = {
        "pipeline": request.name,
        "group": request.group or f"etl-{request.name}",
        "zookeeper": {"connect": request.zookeeper},
        "table": {"path": request.table},
        "source": {
            "broker_type": broker_type.value,
            "assume_cluster_id": request.cluster or request.name,
            "topics": list(request.topics) or [".*"],
            "bootstrap_servers": request.bootstrap or None,
        },
    }
    return parse_settings(changed(document, request.keys))


def _find_broker_type(zookeeper: ZooKeeper) -> BrokerFamily:
    """Return the type of the brokers that are registered under the chroot.

    Raises WrongChroot, with other chroots in the action, and SettingsError.
    """
    try:
        read_registrations(zookeeper, BrokerFamily.KAFKA)
    except WrongChroot as error:
        action = _describe_chroots(zookeeper) or error.action
        raise WrongChroot(error.message, action=action, **error.where) from error
    except SettingsError as error:
        if error.where.get("key") != "source.broker_type":
            raise
        read_registrations(zookeeper, BrokerFamily.JAFKA)
        return BrokerFamily.JAFKA
    return BrokerFamily.KAFKA


def _describe_chroots(zookeeper: ZooKeeper) -> str:
    """Describe the root and its children with registered brokers; empty if there is none."""
    servers = zookeeper.connect.partition("/")[0]
    found = chroots_with_brokers(zookeeper)
    if not found:
        return ""
    chroot = found[0].rstrip("/")
    chroots = ", ".join(found)
    return f"Pass --zookeeper {servers}{chroot}. Brokers are registered under {chroots}"


def _selected_topics(
    settings: Settings, metadata: ClusterMetadata, *, is_given: bool
) -> ClusterMetadata:
    """Return the metadata of the selected topics. Raises SettingsError if there is none."""
    names = [name for name, topic in metadata.topics.items() if not topic.is_internal]
    existing = tuple(sorted(names))
    if not is_given:
        raise SettingsError(
            "No topics selected",
            action=f"Pass --topic, once for each topic. {_describe_topics(existing)}",
        )
    selected = chosen_topics(metadata, settings.source.topic_filter)
    reject_missing_topics(settings, selected.topics, lambda: existing)
    reject_null_partition_value(settings, selected.topics)
    if not selected.topics:
        raise SettingsError(
            f"No topic matches {', '.join(settings.source.topics)}",
            action=f"Pass --topic. {_describe_topics(existing)}",
        )
    return selected


def _describe_topics(existing: Sequence[str]) -> str:
    if not existing:
        return "The cluster has no topics yet"
    names = ", ".join(existing[:TOPICS_NAMED])
    if len(existing) > TOPICS_NAMED:
        names = f"{names} and {len(existing) - TOPICS_NAMED} more"
    return f"The cluster has {names}"


def _count_offsets(cluster: Cluster, settings: Settings, selected: ClusterMetadata) -> int:
    partitions = []
    for topic in selected.topics.values():
        partitions += [partition.partition for partition in topic.partitions]
    found = cluster.extents(
        partitions,
        isolation=settings.source.isolation_level,
        wait_for_leader_s=0,
        metadata=selected,
    )
    return sum(offsets.end_offset - offsets.log_start_offset for offsets in found.extents.values())


def _find_rows_before(settings: Settings, topics: Collection[str]) -> NeedsDecision | None:
    """Return the error of the first run if the table holds rows of these topics; else None."""
    path = settings.table.path
    folder = folder_of(path)
    if folder is not None:
        path = os.path.abspath(folder)
    rows = unaccounted_rows(path, topics, physical=settings.source.is_physical)
    if not rows:
        return None
    table = open_table(path)
    if not table:
        return None
    return unplanned_rows_error(rows, table.version())


# -- connection security


@contextlib.contextmanager
def _open_zookeeper(request: InitRequest, settings: Settings) -> Iterator[ZooKeeper]:
    """Context manager: the session. An error of missing security settings names the keys to add."""
    timeout_s = settings.zookeeper.session_timeout_s
    access = settings.zookeeper.access
    has_keys = any(change.key.startswith("zookeeper.") for change in request.keys)
    with contextlib.ExitStack() as session:
        try:
            zookeeper = session.enter_context(
                ZooKeeper(request.zookeeper, connect_timeout_s=timeout_s, access=access)
            )
        except EtlError as error:
            key = str(error.where.get("key"))
            if has_keys or not key.startswith("zookeeper."):
                raise
            action = f"{error.action}. Pass to `etl init`: {propose_zookeeper_security(key)}"
            raise type(error)(error.message, action=action, **error.where) from error
        yield zookeeper


@contextlib.contextmanager
def _describe_missing_security(
    request: InitRequest, zookeeper: ZooKeeper, broker_type: BrokerFamily
) -> Iterator[None]:
    """Context manager: an error of missing security settings names the keys to add, no secrets."""
    try:
        yield
    except SettingsError as error:
        key = str(error.where.get("key"))
        is_security = key.startswith(("source.security", "source.listener"))
        has_protocol = any(change.key == "source.security.protocol" for change in request.keys)
        # Jafka has neither encryption nor logins.
        if has_protocol or not is_security or broker_type is BrokerFamily.JAFKA:
            raise
        listeners = list[tuple[str, str]]()
        if not request.bootstrap:
            # `error` is the cause, also if the listeners cannot be read.
            with contextlib.suppress(EtlError):
                for payload in read_registrations(zookeeper, BrokerFamily.KAFKA).values():
                    listeners += parse_endpoints(payload)
        action = f"{error.action}. Pass to `etl init`: {propose_broker_security(listeners)}"
        raise type(error)(error.message, action=action, **error.where) from error


def propose_broker_security(listeners: Sequence[tuple[str, str]]) -> str:
    """Return the options for `source.security`, after a connection without them was rejected.

    listeners   name and protocol of the brokers' listeners; if empty, a login with TLS is proposed
    """
    listener, protocol = _best_listener(listeners)
    settings = [f"source.security.protocol={protocol}"]
    protocols = [other for _, other in set(listeners)]
    if protocols.count(protocol) > 1:
        settings.append(f"source.listener={listener}")
    if protocol.startswith("SASL"):
        settings += [
            "source.security.sasl.mechanism=MECHANISM",
            "source.security.sasl.username=NAME",
            "'source.security.sasl.password=${file:/PATH}'",
        ]
    if not protocol.endswith("SSL"):
        return _set_options(settings)
    settings.append("source.security.tls.ca_file=PEM")
    return f"{_set_options(settings)} (without ca_file the system's authorities are trusted)"


def _best_listener(listeners: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return name and protocol of the most secure listener; the name is empty if there is none."""
    for preferred in _PREFERRED_PROTOCOLS:
        for listener, protocol in listeners:
            if protocol == preferred:
                return listener, protocol
    return "", _PREFERRED_PROTOCOLS[0]


def propose_zookeeper_security(key: str) -> str:
    """Return the options for `zookeeper.tls` or `zookeeper.auth`, by the key of the error."""
    if key.startswith("zookeeper.tls"):
        return _set_options(["zookeeper.tls.enabled=true", "zookeeper.tls.ca_file=PEM"])
    return _set_options(
        [
            "zookeeper.auth.scheme=sasl",
            "zookeeper.auth.username=NAME",
            "'zookeeper.auth.password=${file:/PATH}'",
        ]
    )


def _set_options(settings: Sequence[str]) -> str:
    return " ".join(f"--set {setting}" for setting in settings)
