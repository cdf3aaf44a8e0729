"""How do a conf file and the command line become settings?

Steps: read the file, apply `--set`, merge defaults, resolve references, validate (all errors are
reported at once), make paths absolute.

Lives here, too: keys that are not supported on Jafka, and why; the path of a table that a catalog
names; settings of a backfill, which owns no partitions, mirrors no offsets and always has caps,
so that a driver that dies loses one bounded plan at most; run keys and the end of a run.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from etl.errors import NotReady, SettingsError
from etl.model.partitions import Isolation, OffsetsStorage
from etl.model.plans import Bound, Bounds, Request
from etl.model.security import OPEN, OPEN_ZOOKEEPER, Access, Security
from etl.model.snapshot import backfill_pipeline
from etl.settings.choices import (
    BACKFILL_PLAN_BYTES,
    CommitWhen,
    OnActiveMembers,
    OnNoLeader,
    OwnershipMode,
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
from etl.settings.connection_security import SecuritySettings, WayInSettings
from etl.settings.schema import MEANINGS, conf_mistake
from etl.settings.secrets import PIPELINE_NAME
from etl.settings.sections import Settings
from etl.settings.source import Timestamp, parse_timestamp
from etl.settings.table import reject_unsupported_store_keys

_SPARK = "spark"
_UNSIGNED = re.compile(r"[^\w.-]")
"""End of a key."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key of the conf, and what it is for this run."""

    key: str
    """With its section: `limits.max_records_per_plan`; of Spark's settings `spark.driver.memory`, as
    Spark calls it.
    """
    value: Any
    """The value as YAML reads it; a text may still refer to a secret."""
    text: str
    """The text as written."""

    @property
    def place(self) -> tuple[str, ...]:
        """The keys that lead to it in the document. Spark's own names hold dots, and are one key of
        the section `spark`.
        """
        return (
            (_SPARK, self.key) if self.key.startswith(f"{_SPARK}.") else tuple(self.key.split("."))
        )


def parse_change(word: str) -> Change:
    """Parse `KEY=VALUE`, the value as YAML. Raises SettingsError for an unknown key and for invalid
    YAML.
    """
    key, equals, text = word.partition("=")
    key = key.strip()
    if not equals or not key:  # who wrote another sign may have a password behind it
        raise SettingsError(
            f"--set {_UNSIGNED.split(key)[0]}: it is not KEY=VALUE",
            action="--set limits.max_records_per_plan=1000",
        )
    if key.startswith(f"{_SPARK}.{_SPARK}."):  # as it stands in the file, section and name
        key = key.removeprefix(f"{_SPARK}.")
    if key not in MEANINGS and not key.startswith(f"{_SPARK}."):
        raise SettingsError(f"--set {key}: a conf has no such key", key=key, action=_near(key))
    try:
        return Change(key, document_of(text), text)
    except NOT_YAML as error:
        message = f"--set {key}: the value cannot be read as YAML: {said_of(error)}"
        raise SettingsError(
            message,
            key=key,
            action="the value: it is written as in a conf file, in quotes for the shell",
        ) from error


def _near(key: str) -> str:
    last = key.rpartition(".")[2]
    like = difflib.get_close_matches(key, MEANINGS, n=1) or [
        known for known in MEANINGS if known.rpartition(".")[2] == last
    ]
    return (
        f"did you mean `{like[0]}`?"
        if like
        else "the keys of a conf, each with its section: `etl conf schema` tells them"
    )


def changed(document: Any, changes: Sequence[Change]) -> Any:
    """Return the document with these keys set; a document that is no mapping is left to the
    validation.
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
    return {**section, first: _put(below if isinstance(below, dict) else {}, rest, value)}


_UNTOLD = ("spark.", "zookeeper", "source.bootstrap_servers", "source.security", "table.store")
"""Reports leave out Spark's settings, which may hold secrets, how brokers and stores are entered,
and where servers are.
"""


def describe_overrides(changes: Sequence[Change]) -> dict[str, str | None]:
    """Key -> the value as it was written, for a report; null of what reports leave out."""
    return {
        change.key: None if change.key.startswith(_UNTOLD) or change.key == _SPARK else change.text
        for change in changes
    }


_REFUSED: Mapping[str, tuple[Callable[[Settings], bool], str]] = {
    "source.assume_cluster_id": (
        lambda conf: conf.source.assume_cluster_id is None,
        "is missing: such brokers have no cluster id, and plans and commits need a name for the cluster; give it one",
    ),
    "group.mirror_group": (
        lambda conf: conf.group.mirror_group is not None,
        "cannot be written: such brokers keep no offsets of groups; leave the key out",
    ),
    "group.offsets_storage": (
        lambda conf: conf.group.offsets_storage is not OffsetsStorage.ZOOKEEPER,
        "cannot be kafka or dual: such brokers keep no offsets of groups, and their consumers have them in ZooKeeper; leave the key out",
    ),
    "source.bootstrap_servers": (
        lambda conf: conf.source.bootstrap_servers is not None,
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
    "source.starting_offsets": (
        lambda conf: isinstance(conf.source.starting_offsets, Timestamp),
        "cannot be a time: messages have none, and such a broker's search by time knows segments only and answers one too old; "
        "use earliest or latest",
    ),
    "source.isolation_level": (
        lambda conf: conf.source.isolation_level is not Isolation.READ_UNCOMMITTED,
        "cannot be read_committed: there are no transactions; leave the key out",
    ),
    "source.on_no_leader": (
        lambda conf: conf.source.on_no_leader is not OnNoLeader.SKIP,
        "cannot be fail: a partition is on one broker only, and one whose broker is away is always left for a later run; "
        "leave the key out",
    ),
    "source.assume_compacted": (
        lambda conf: bool(conf.source.assume_compacted),
        "has no meaning: there is no compaction; leave the key out",
    ),
    "limits.max_records_per_plan": (
        lambda conf: conf.limits.max_records_per_plan is not None,
        "cannot be kept: offsets are byte positions, from which no records can be counted; use limits.max_bytes_per_plan",
    ),
    "table.partition_by": (
        lambda conf: "event_date" in conf.table.partition_by and conf.transform.function is None,
        "names event_date, which is made of the records' timestamps, and messages have none; name another column, "
        "or add a column `timestamp` by a transform",
    ),
}
"""Key -> whether the conf sets it, and why it is not supported."""


def reject_unfit(settings: Settings, path: str | None) -> None:
    """Raises SettingsError with all unsupported keys of a Jafka conf; `key` is the first one."""
    found = (
        {key: why for key, (asks, why) in _REFUSED.items() if asks(settings)}
        if settings.source.is_physical
        else {}
    )
    if found:
        dialect = f"where source.broker_type is {settings.source.broker_type.value}"
        said = "\n".join(f"{key} {why}" for key, why in found.items())
        message = (
            f"{dialect}, {said}"
            if len(found) == 1
            else f"{len(found)} keys do not fit {dialect}:\n{said}"
        )
        raise SettingsError(
            message, key=next(iter(found)), path=path, action="these keys, and source.broker_type"
        )


def placed_by_name(settings: Settings, path: str) -> Settings:
    """The settings of a named table, with the place that the catalog has for it.

    Raises SettingsError for a place that both engines would not take for the same, that
    `table.store` does not fit, or that is in the way of the losses table, reports or metrics.
    """
    table, key = settings.table, "table.name"
    try:
        placed = settings.model_copy(
            update={"table": table.placed(check_place(path), table.losses_path)}
        )
    except ValueError as error:
        action = "ALTER TABLE ... SET LOCATION, or another table"
        raise SettingsError(
            f"{table.name} is at a place that cannot be used: {error}",
            path=path,
            key=key,
            action=action,
        ) from error
    reject_unsupported_store_keys(path, table.store, None)
    reject_overlapping_paths(placed, None)
    return placed


def reject_overlapping_paths(settings: Settings, conf: str | Path | None) -> None:
    """Raises SettingsError where reports, metrics or the losses table are in a folder of the
    table's, or it in theirs.
    """
    wrong = not_apart(
        settings.table.path, settings.table.losses_at, settings.report.path, settings.metrics_file
    )
    if wrong is not None:
        action = "a folder of its own for each table, and others for reports and metrics"
        raise SettingsError(wrong[1], key=wrong[0], path=conf, action=action)


_NEEDED = ("pipeline", "group", "zookeeper.connect", "source.topics", "table.path")


def load_settings(path: str | Path, changes: Sequence[Change] = ()) -> Settings:
    """Load one conf file. Local paths are relative to its directory and become absolute; `changes`
    are set first. Raises SettingsError with the file, its defaults, and all invalid keys.
    """
    document = changed(read_document(path, "the conf file"), changes)
    defaults = _defaults_of(document, path)
    try:
        settings = _placed(
            parse_settings(document, path=str(path), defaults=defaults),
            str(Path(path).absolute().parent),
        )
        if settings.table.is_placed:
            reject_overlapping_paths(settings, path)
    except SettingsError as error:
        raise _from_where(error, defaults, changes) from error.__cause__
    return settings


def _defaults_of(document: Any, path: str | Path) -> Defaults | None:
    try:
        return defaults_of(document, str(path))
    except SettingsError as error:
        error.where |= {"conf": str(path)}
        raise


def _from_where(
    error: SettingsError, defaults: Defaults | None, changes: Sequence[Change]
) -> SettingsError:
    """Add the defaults file and `--set` changes to an error."""
    error.where |= {
        name: value
        for name, value in (
            ("defaults", defaults and defaults.path),
            ("set", ", ".join(change.key for change in changes)),
        )
        if value
    }
    return error


def parse_settings(
    document: Any, *, path: str | None = None, defaults: Defaults | None = None
) -> Settings:
    """Convert a YAML document to settings. Raises SettingsError with all invalid keys; its `key` is
    the path of the first.
    """
    if not isinstance(document, dict):
        raise SettingsError(
            "a conf file is a mapping of keys", path=path, action=f"it needs {', '.join(_NEEDED)}"
        )
    try:
        written = expand_short_forms(document)
        meant = resolve(written, path)
        if defaults is not None:
            written, meant = over(defaults.written, written), over(defaults.meant, meant)
        settings = Settings.model_validate(meant)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise conf_mistake(found, path, lambda loc: reference_at(written, loc)) from error
    except RecursionError as error:
        raise SettingsError(
            "its values lie too deep in each other", path=path, action="its indentation"
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
            action="table.writer: auto, or arrow; or leave the key out",
        )
    return settings


def _placed(settings: Settings, folder: str) -> Settings:
    """Return the settings with absolute paths: another working directory must not be another table."""
    table, report, metrics = settings.table, settings.report, settings.metrics
    losses = table.losses_path and relative_path(folder, table.losses_path)
    return settings.model_copy(
        update={
            "table": table.placed(
                relative_path(folder, table.path) if table.is_placed else None, losses
            ),
            "report": report.model_copy(update={"path": relative_path(folder, report.path)}),
            "metrics": metrics.model_copy(
                update={"path": metrics.path and relative_path(folder, metrics.path)}
            ),
        }
    )


def settings_of_backfill(settings: Settings, name: str) -> Settings:
    """Those by which the plans of the backfill are made and executed. Raises SettingsError for a
    name that is none.
    """
    if not re.fullmatch(PIPELINE_NAME, name):
        action = "a letter or digit, then letters, digits, `.`, `_` and `-`"
        raise SettingsError(f"{name!r} is no name for a backfill", key="NAME", action=action)
    limits = settings.limits
    if limits.max_bytes_per_plan is None:
        limits = limits.model_copy(update={"max_bytes_per_plan": BACKFILL_PLAN_BYTES})
    group = settings.group.model_copy(
        update={
            "mode": OwnershipMode.OBSERVE,
            "on_active_members": OnActiveMembers.SKIP,
            "mirror_group": None,
            "join": settings.group.join.model_copy(update={"commit_when": CommitWhen.BEFORE_READ}),
        }
    )
    return settings.model_copy(
        update={
            "pipeline": backfill_pipeline(settings.pipeline, name),
            "limits": limits,
            "group": group,
            "metrics": settings.metrics.model_copy(update={"path": None}),
        }
    )


RUN_KEY_MAX = 200
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FORMS = "2026-01-31T13:00Z, or -1h (before now)"


def request_of(
    settings: Settings, *, run_key: str | None, until: str | None, now_ms: int
) -> Request | None:
    """Return the request; None without one. Raises SettingsError, and NotReady for a key
    whose end is in the future.
    """
    end = parse_bound(until, now_ms, key="--until") if until is not None else None
    key = _run_key(run_key) if run_key is not None else None
    if settings.source.is_physical and end:
        message = (
            "Jafka and Kafka 0.7 keep no time of a message, and count bytes instead of messages"
        )
        action = (
            "what they can do instead: --run-key alone (what is there when it is first asked for), and limits.max_bytes_per_plan for how "
            "much one run reads"
        )
        raise SettingsError(message, key="--until", action=action)
    if key and end and end.at_ms is not None and end.at_ms > now_ms:
        message = f"{end.said} is in the future by {(end.at_ms - now_ms) / 1000:,.0f} s, by the clock of this machine"
        action = "run it once the interval is over: under its key nothing would be loaded that comes until then"
        raise NotReady(message, key="--until", action=action)
    return Request(key, Bounds(None, end)) if key or end else None


def parse_bound(text: str, now_ms: int, *, key: str) -> Bound:
    """Parse a TIME as a bound: ISO 8601 with a UTC offset, or `-1h` (before now). Raises
    SettingsError.
    """
    said = text.strip()
    if found := re.fullmatch(r"-([0-9]{1,9})([smhd])", said, re.ASCII):
        return Bound(
            said, at_ms=_moment(now_ms - int(found[1]) * _SECONDS[found[2]] * 1000, text, key)
        )
    try:
        return _at(parse_timestamp(said).ms, text, key)
    except ValueError as error:
        message = f"{text!r} is no time: {error}"
        raise SettingsError(message, key=key, action=f"one of: {_FORMS}") from error


def _at(ms: int, text: str, key: str) -> Bound:
    moment = datetime.fromtimestamp(_moment(ms, text, key) / 1000, UTC)
    return Bound(
        moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace(
            "+00:00", "Z"
        ),
        at_ms=ms,
    )


def _moment(ms: int, text: str, key: str) -> int:
    if not 0 <= ms < 253_402_300_800_000:  # the year 10000
        raise SettingsError(
            f"{text!r} lies outside the years 1970 to 9999", key=key, action=f"one of: {_FORMS}"
        )
    return ms


def _run_key(text: str) -> str:
    if not text.strip() or len(text) > RUN_KEY_MAX or not text.isprintable():
        message = f"a run key is text of 1 to {RUN_KEY_MAX} printable characters"
        raise SettingsError(
            message,
            key="--run-key",
            action="what the scheduler calls this run, the same in each of its retries",
        )
    return text.strip()


def security_of(said: Security | Mapping[str, Any] | None) -> Security:
    """Convert a mapping as in a conf, with `listener` beside the other keys; paths are relative to
    the working directory. Raises SettingsError with the conf's keys.
    """
    if said is None or isinstance(said, Security):
        return said or OPEN
    keys = {name: value for name, value in said.items() if name != "listener"}
    listener = said.get("listener")
    if listener is not None and not (isinstance(listener, str) and listener):
        raise SettingsError(
            "the name of a listener is a text", key="source.listener", action="the listener's name"
        )
    try:
        return SecuritySettings.model_validate(keys).value(listener)
    except ValidationError as error:
        raise _mistake(error, "source", "security") from None


def access_of(said: Access | Mapping[str, Any] | None) -> Access:
    """Convert a mapping as in `zookeeper`: its keys `tls` and `auth`."""
    if said is None or isinstance(said, Access):
        return said or OPEN_ZOOKEEPER
    try:
        return WayInSettings.model_validate(dict(said)).entered()
    except ValidationError as error:
        raise _mistake(error, "zookeeper") from None


def _mistake(error: ValidationError, *section: str) -> SettingsError:
    found = [
        {**one, "loc": (*section, *one["loc"])}
        for one in error.errors(include_url=False, include_context=False)
    ]
    return conf_mistake(found, None, lambda place: None)
