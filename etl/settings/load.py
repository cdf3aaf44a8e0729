"""How do a conf file and the command line become settings?

Steps: read the file, apply `--set`, merge defaults, resolve references, validate (all errors are
reported at once), make paths absolute.

Lives here, too: keys that are not supported on Jafka, and why; the path of a table that a catalog
names; settings of a backfill, which always has caps, so that runs wait for one bounded plan.
Not here: the run key and the end of a run (etl/settings/until_and_run_key.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from etl.errors import SettingsError
from etl.model.partitions import Isolation, OffsetsStorage
from etl.model.security import OPEN, OPEN_ZOOKEEPER, Access, Security
from etl.settings.choices import (
    BACKFILL_PLAN_BYTES,
    OnActiveMembers,
    OnNoLeader,
    WriterName,
    check_place,
    not_apart,
)
from etl.settings.conf_file import (
    NOT_YAML,
    Defaults,
    defaults_of,
    document_of,
    expand_short_forms,
    over,
    read_document,
    reference_at,
    relative_path,
    resolve,
    said_of,
)
from etl.settings.connection_security import AuthenticationSettings, SecuritySettings
from etl.settings.schema import conf_mistake, key_names, similar_name
from etl.settings.secrets import PIPELINE_NAME
from etl.settings.sections import Settings
from etl.settings.source import Timestamp
from etl.settings.table import reject_unsupported_store_keys

_SPARK = "spark"
_END_OF_KEY = re.compile(r"[^\w.-]")
"""The first character that no key has."""


@dataclass(frozen=True, slots=True)
class Change:
    """A conf key that `--set` changes for one command."""

    key: str
    """With its section: `limits.max_records_per_plan`. A Spark property: its own name,
    `spark.driver.memory`.
    """
    value: Any
    """The value as YAML reads it; a string may be a reference to a secret."""
    text: str
    """The text as written."""

    @property
    def place(self) -> tuple[str, ...]:
        """The path of keys in the document. A Spark property contains dots and is one key of the
        section `spark`.
        """
        if self.key.startswith(f"{_SPARK}."):
            return (_SPARK, self.key)
        return tuple(self.key.split("."))


def parse_change(word: str) -> Change:
    """Parse `KEY=VALUE`, the value as YAML. Raises SettingsError for an unknown key and for invalid
    YAML.
    """
    key, equals, text = word.partition("=")
    key = key.strip()
    is_spark = key.startswith(f"{_SPARK}.")
    # After another separator there may be a password: print only this part.
    printable = _END_OF_KEY.split(key)[0]
    if not equals or not key or (printable != key and not is_spark):
        raise SettingsError(
            f"--set {printable}: not of the form KEY=VALUE",
            action="Write it as in --set limits.max_records_per_plan=1000",
        )
    if key.startswith(f"{_SPARK}.{_SPARK}."):  # section and name, as in the file
        key = key.removeprefix(f"{_SPARK}.")
    if key not in key_names() and not is_spark:
        raise SettingsError(f"--set {key}: unknown key", key=key, action=_near(key))
    try:
        return Change(key, document_of(text), text)
    except NOT_YAML as error:
        raise SettingsError(
            f"--set {key}: the value is not valid YAML: {said_of(error)}",
            key=key,
            action="Write the value as in a conf file, and quote it for the shell",
        ) from error


def _near(key: str) -> str:
    last = key.rpartition(".")[2]
    similar = similar_name(key, key_names())
    if similar is None:
        with_same_name = (known for known in key_names() if known.rpartition(".")[2] == last)
        similar = next(with_same_name, None)
    if similar is not None:
        return f"Did you mean `{similar}`?"
    return "List the keys, each with its section, with `etl conf schema`"


def changed(document: Any, changes: Sequence[Change]) -> Any:
    """Return the document with these keys set. A document that is not a mapping is returned as it
    is: validation rejects it.
    """
    if isinstance(document, dict):
        document = expand_short_forms(document)
        for change in changes:
            document = expand_short_forms(_put(document, change.place, change.value))
    return document


def _put(section: Mapping[Any, Any], place: Sequence[str], value: Any) -> dict[Any, Any]:
    first, *rest = place
    if not rest:
        return {**section, first: value}
    below = section.get(first)
    if not isinstance(below, dict):
        below = {}
    return {**section, first: _put(below, rest, value)}


_HIDDEN = ("spark.", "zookeeper", "source.bootstrap_servers", "source.security", "table.store")
"""Prefixes of keys; reports leave out their values, as these may be secrets or addresses."""


def describe_overrides(changes: Sequence[Change]) -> dict[str, str | None]:
    """Return key -> value as written, for a report; None for values that reports leave out."""
    described: dict[str, str | None] = {}
    for change in changes:
        is_hidden = change.key.startswith(_HIDDEN) or change.key == _SPARK
        described[change.key] = None if is_hidden else change.text
    return described


_UNSUPPORTED_ON_JAFKA: Mapping[str, tuple[Callable[[Settings], bool], str]] = {
    "source.assume_cluster_id": (
        lambda conf: conf.source.assume_cluster_id is None,
        "is missing: these brokers have no cluster id, and plans and commits need one. Set a name",
    ),
    "group.mirror_group": (
        lambda conf: conf.group.mirror_group is not None,
        "is not supported: these brokers store no offsets of groups. Remove the key",
    ),
    "group.offsets_storage": (
        lambda conf: conf.group.offsets_storage is not OffsetsStorage.ZOOKEEPER,
        "cannot be kafka or dual: these brokers store no offsets of groups; their consumers use "
        "ZooKeeper. Remove the key",
    ),
    "source.bootstrap_servers": (
        lambda conf: conf.source.bootstrap_servers is not None,
        "is not supported: these brokers report neither their id nor their topics. They must be "
        "registered in the ZooKeeper of zookeeper.connect (enable.zookeeper=true). Remove the key",
    ),
    "source.broker_version": (
        lambda conf: conf.source.broker_version is not None,
        "has no effect: these brokers have one protocol version. Remove the key",
    ),
    "source.listener": (
        lambda conf: conf.source.listener is not None,
        "has no effect: these brokers have one listener. Remove the key",
    ),
    "source.security": (
        lambda conf: conf.source.way_in != OPEN,
        "is not supported: these brokers have neither encryption nor logins. Remove the key",
    ),
    "source.starting_offsets": (
        lambda conf: isinstance(conf.source.starting_offsets, Timestamp),
        "cannot be a time: messages have no timestamps, and the broker's search by time returns "
        "segments, one too early. Use earliest",
    ),
    "source.isolation_level": (
        lambda conf: conf.source.isolation_level is not Isolation.READ_UNCOMMITTED,
        "cannot be read_committed: there are no transactions. Remove the key",
    ),
    "source.on_no_leader": (
        lambda conf: conf.source.on_no_leader is not OnNoLeader.SKIP,
        "must be skip: a partition is on one broker only, and if that is down, a later run loads "
        "it. Remove the key",
    ),
    "source.assume_compacted": (
        lambda conf: bool(conf.source.assume_compacted),
        "has no effect: there is no compaction. Remove the key",
    ),
    "limits.max_records_per_plan": (
        lambda conf: conf.limits.max_records_per_plan is not None,
        "is not supported: offsets are byte positions, which do not count records. Use "
        "limits.max_bytes_per_plan",
    ),
    "table.partition_by": (
        lambda conf: "event_date" in conf.table.partition_by and conf.transform.function is None,
        "names event_date, the date of the record's timestamp, and messages have none. Name "
        "another column, or add a column `timestamp` with a transform",
    ),
}
"""Key -> test whether the conf sets it, and why Jafka does not support it."""


def reject_unfit(settings: Settings, path: str | None) -> None:
    """Raise SettingsError with all unsupported keys of a Jafka conf; `key` is the first one."""
    if not settings.source.is_physical:
        return
    keys = []
    reasons = []
    for key, (is_set, reason) in _UNSUPPORTED_ON_JAFKA.items():
        if is_set(settings):
            keys.append(key)
            reasons.append(f"{key} {reason}")
    if not keys:
        return
    broker_type = f"source.broker_type: {settings.source.broker_type.value}"
    if len(keys) == 1:
        message = f"With {broker_type}, {reasons[0]}"
    else:
        message = "\n".join([f"With {broker_type}, {len(keys)} keys are not supported:", *reasons])
    raise SettingsError(
        message, key=keys[0], path=path, action="Check these keys, and source.broker_type"
    )


def placed_by_name(settings: Settings, path: str) -> Settings:
    """Return the settings of a named table with the path that the catalog has for it.

    Raises SettingsError for a path that Spark and delta-rs read differently, that `table.store`
    does not fit, or that overlaps with the losses table, reports or metrics.
    """
    table, key = settings.table, "table.name"
    try:
        placed = settings.model_copy(
            update={"table": table.placed(check_place(path), table.losses_path)}
        )
    except ValueError as error:
        action = "Change it with ALTER TABLE ... SET LOCATION, or set another table"
        raise SettingsError(
            f"The path of {table.name} cannot be used: {error}",
            path=path,
            key=key,
            action=action,
        ) from error
    reject_unsupported_store_keys(path, table.store, None)
    reject_overlapping_paths(placed, None)
    return placed


def reject_overlapping_paths(settings: Settings, conf: str | Path | None) -> None:
    """Raise SettingsError if reports, metrics or the losses table are inside the table's directory,
    or the table inside theirs.
    """
    wrong = not_apart(
        settings.table.path, settings.table.losses_at, settings.report.path, settings.metrics_file
    )
    if wrong is not None:
        action = "Use a separate directory for each table, for reports and for metrics"
        raise SettingsError(wrong[1], key=wrong[0], path=conf, action=action)


_NEEDED = ("pipeline", "group", "zookeeper.connect", "source.topics", "table.path")


def load_settings(path: str | Path, changes: Sequence[Change] = ()) -> Settings:
    """Load one conf file, with `changes` applied. Local paths are relative to its directory and
    become absolute.

    Raises SettingsError with the file, its defaults, and all invalid keys.
    """
    document = changed(read_document(path, "the conf file"), changes)
    defaults = _defaults_of(document, path)
    try:
        settings = parse_settings(document, path=str(path), defaults=defaults)
        folder = str(Path(path).absolute().parent)
        settings = _with_absolute_paths(settings, folder)
        if defaults is not None and not _sets_transform(document):
            folder = relative_path(folder, str(Path(defaults.path).parent))
        settings = settings.model_copy(update={"transform": settings.transform.beside(folder)})
        if settings.table.is_placed:
            reject_overlapping_paths(settings, path)
    except SettingsError as error:
        raise _with_sources(error, defaults, changes) from error.__cause__
    return settings


def _sets_transform(document: Any) -> bool:
    """Return True if the conf itself names its transform; else a file of defaults may."""
    transform = expand_short_forms(document).get("transform") or {}
    return any(transform.get(key) is not None for key in ("dataframe", "record_batch"))


def _defaults_of(document: Any, path: str | Path) -> Defaults | None:
    try:
        return defaults_of(document, str(path))
    except SettingsError as error:
        error.where |= {"conf": str(path)}
        raise


def _with_sources(
    error: SettingsError, defaults: Defaults | None, changes: Sequence[Change]
) -> SettingsError:
    """Add the defaults file and the `--set` keys to an error."""
    if defaults:
        error.where["defaults"] = defaults.path
    if changes:
        error.where["set"] = ", ".join(change.key for change in changes)
    return error


def parse_settings(
    document: Any, *, path: str | None = None, defaults: Defaults | None = None
) -> Settings:
    """Convert a YAML document to settings. Raises SettingsError with all invalid keys; its `key` is
    the path of the first.
    """
    if not isinstance(document, dict):
        raise SettingsError(
            "The conf is not a mapping of keys",
            path=path,
            action=f"Write a mapping with at least {', '.join(_NEEDED)}",
        )
    try:
        written = expand_short_forms(document)
        resolved = resolve(written, path)
        if defaults is not None:
            written = over(defaults.written, written)
            resolved = over(defaults.resolved, resolved)
        settings = Settings.model_validate(resolved)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise conf_mistake(found, path, lambda loc: reference_at(written, loc)) from error
    except RecursionError as error:
        raise SettingsError(
            "The values of the conf are nested too deeply",
            path=path,
            action="Check its indentation",
        ) from error
    reject_unfit(settings, path)
    if settings.table.is_placed:
        reject_unsupported_store_keys(settings.table.path, settings.table.store, path)
    if settings.limits.local_below_bytes and settings.table.writer is WriterName.SPARK:
        key = "limits.local_below_bytes"
        raise SettingsError(
            f"{key} has no effect under table.writer: spark",
            key=key,
            path=path,
            action="Set table.writer: auto or arrow, or remove the key",
        )
    return settings


def _with_absolute_paths(settings: Settings, folder: str) -> Settings:
    """Return the settings with absolute paths, so that the table does not depend on the working
    directory.
    """
    table, report, metrics = settings.table, settings.report, settings.metrics
    table_path = None
    if table.is_placed:
        table_path = relative_path(folder, table.path)
    losses_path = table.losses_path and relative_path(folder, table.losses_path)
    report_path = relative_path(folder, report.path)
    metrics_path = metrics.path and relative_path(folder, metrics.path)
    return settings.model_copy(
        update={
            "table": table.placed(table_path, losses_path),
            "report": report.model_copy(update={"path": report_path}),
            "metrics": metrics.model_copy(update={"path": metrics_path}),
        }
    )


def reject_name_of_backfill(name: str) -> None:
    """Raise SettingsError for text that no backfill can have as its name."""
    if not re.fullmatch(PIPELINE_NAME, name):
        raise SettingsError(
            f"{name!r} is not a name of a backfill",
            key="NAME",
            action="Use a letter or digit, then letters, digits, `.`, `_` and `-`",
        )


def settings_of_backfill(settings: Settings, name: str) -> Settings:
    """Return the settings for the plans of a backfill, which always have a cap, and read offsets
    that no active member of the group reads. Raises as `reject_name_of_backfill`.
    """
    reject_name_of_backfill(name)
    limits = settings.limits
    if limits.max_bytes_per_plan is None:
        limits = limits.model_copy(update={"max_bytes_per_plan": BACKFILL_PLAN_BYTES})
    group = settings.group.model_copy(update={"on_active_members": OnActiveMembers.SKIP})
    return settings.model_copy(
        update={
            "limits": limits,
            "group": group,
            "metrics": settings.metrics.model_copy(update={"path": None}),
        }
    )


def security_of(value: Security | Mapping[str, Any] | None) -> Security:
    """Convert a mapping with the keys of `source.security` and `listener`. Paths are relative to
    the working directory. Raises SettingsError with the conf's keys.
    """
    if value is None or isinstance(value, Security):
        return value or OPEN
    keys = {name: one for name, one in value.items() if name != "listener"}
    listener = value.get("listener")
    if listener is not None and not (isinstance(listener, str) and listener):
        raise SettingsError(
            "The name of a listener must be a string",
            key="source.listener",
            action="Pass the listener's name",
        )
    try:
        return SecuritySettings.model_validate(keys).value(listener)
    except ValidationError as error:
        raise _mistake(error, "source", "security") from None


def access_of(value: Access | Mapping[str, Any] | None) -> Access:
    """Convert a mapping with the keys `tls` and `auth` of `zookeeper`."""
    if value is None or isinstance(value, Access):
        return value or OPEN_ZOOKEEPER
    try:
        return AuthenticationSettings.model_validate(dict(value)).access_with()
    except ValidationError as error:
        raise _mistake(error, "zookeeper") from None


def _mistake(error: ValidationError, *section: str) -> SettingsError:
    found = [
        {**one, "loc": (*section, *one["loc"])}
        for one in error.errors(include_url=False, include_context=False)
    ]
    return conf_mistake(found, None, lambda place: None)
