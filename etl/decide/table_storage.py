"""How are a table's files laid out, maintained, and accessed in a store?

Layout: where row groups and files end, encodings, file names. A task holds the rows of a row group
in memory, so these are memory bounds first.

Maintenance: files that no version needs are kept for a week at least, or as long as the table's
property says: RESTORE, a run that counts rows after a crash, and running tasks need them.

Stores: the options that Spark and delta-rs receive, as references to secrets (ADR 35); nothing is
set that the conf does not set, so each engine uses its own chain of credentials. Delta's log store
for S3 coordinates the drivers of one JVM only; ours creates each commit by a conditional put, as
delta-rs does.

Time zone in which Spark computes dates: `spark.sql.session.timeZone` of the conf, then Spark's own
configuration, then UTC. The machine's time zone never counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from urllib.parse import urlsplit

from etl.errors import NotOurTable, SettingsError
from etl.ledger.topic_filters import NotTranslated, java_pattern
from etl.model.partitions import BrokerPartition
from etl.model.plans import Codec, FileOptions, Plan, PlanKind
from etl.model.security import SecretRef
from etl.model.snapshot import Snapshot, Table
from etl.settings.table import (
    StoreKind,
    StoreSettings,
    TablePath,
    account_of,
    kind_of,
    reject_unsupported_store_keys,
)

OPEN_FILES = 32
"""So many files a task has open, one for each value of the table's partitions; then the one that
was used longest ago ends.
"""
PAGE_BYTES = 2**20
"""Bytes of a column's page, as in other Parquet writers; a quarter of it made encoding 20 % slower.
"""
MOST_ROWS_AT_A_TIME = 4096
"""Rows encoded per call: a page ends after a call, so large rows take fewer."""
_REPEATED = ("topic", "partition", "timestampType", "broker_id", "message_index", "incarnation")
"""Columns with few values: a dictionary makes a few bits of each. Of others it would only be tried,
row for row, and given up.
"""
_ASCENDING = ("offset",)
"""Columns with similar neighbouring values."""
_SELDOM_REPEATED = ("key", "value", *_ASCENDING, "timestamp", "headers")
"""Columns of the raw table of which no dictionary is tried, whatever a transform makes of them."""
_TRIED = ("string", "int8", "int16", "int32", "int64", "date32[day]")
"""Types of added columns that get a dictionary. No floats: some readers do not find -0.0 in a
dictionary for 0.0.
"""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_LEVELS: Mapping[Codec, int] = {Codec.ZSTD: 1}


def is_row_group(write_buffer_bytes: int, held_in_all: int, wanted: FileOptions) -> bool:
    """True if buffered rows become a row group now, by the bytes of this file and of all files of
    the task. No row group exceeds a file.
    """
    return (
        write_buffer_bytes >= min(wanted.row_group_bytes, wanted.file_bytes)
        or held_in_all >= wanted.write_buffer_bytes
    )


def rows_at_a_time(rows: int, size: int) -> int:
    """How many rows one call encodes, `rows` of them being so many bytes: about a page of them, or
    fewer.
    """
    return max(1, min(MOST_ROWS_AT_A_TIME, PAGE_BYTES * rows // max(1, size)))


def is_whole_file(written_bytes: int, file_bytes: int) -> bool:
    """True if the file ends after its last row group, by its bytes."""
    return written_bytes >= file_bytes


def with_dictionary(columns: Mapping[str, str]) -> list[str]:
    """Those of the columns, given with their types as Arrow calls them, that are kept by
    dictionary.
    """
    return [
        name
        for name, kind in columns.items()
        if name in _REPEATED or (name not in _SELDOM_REPEATED and kind in _TRIED)
    ]


def by_difference(columns: Mapping[str, str]) -> list[str]:
    """Those of the columns that are kept as differences (DELTA_BINARY_PACKED)."""
    return [name for name, kind in columns.items() if name in _ASCENDING and kind.startswith("int")]


def level_of(codec: Codec) -> int | None:
    """How hard a codec tries; None: it has no such choice."""
    return _LEVELS.get(codec)


def name_of_file(
    values: Mapping[str, str | None], task: int, attempt: int, unique: str, codec: Codec
) -> str:
    """Return the path of a file below the table's directory.

    In a directory per partition value, as in Spark, if the values have plain names. Only the log
    defines partition values (Delta protocol, "Add File"), so other values need no escapes, which
    readers treat differently. `unique` separates attempts; it begins with the id of the write.
    """
    suffix = "" if codec is Codec.NONE else f".{codec.value}"
    name = f"part-{task:05d}-{attempt}-{unique}{suffix}.parquet"
    folders = [
        f"{column}={'__HIVE_DEFAULT_PARTITION__' if value is None else value}"
        for column, value in values.items()
    ]
    is_plain = all(
        _PLAIN_NAME.fullmatch(part) for folder in folders for part in folder.split("=", 1)
    )
    return "/".join([*folders, name]) if is_plain else name


def names_of_write(write_id: str) -> str:
    """The names of all files of one write, whatever their folder, as a pattern of pathlib."""
    return f"part-*-{write_id}-*.parquet"


KEEPS_FILES = "delta.deletedFileRetentionDuration"
LEAST_KEPT = timedelta(days=7)
"""Delta's own default."""
_INTERVAL = re.compile(r"(\d+)\s*(week|day|hour|minute|second|millisecond|microsecond)s?")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of the table as it is."""

    partition: tuple[str | None, ...]
    """The values of the columns by which the table is partitioned."""
    size_bytes: int


def is_small(size_bytes: int, target_bytes: int) -> bool:
    """True if a file has less than half of the target size."""
    return size_bytes * 2 < target_bytes


def small_files(files: Sequence[DataFile], target_bytes: int) -> tuple[int, int]:
    """Return the number and bytes of small files that have another small one in their partition."""
    small: dict[tuple[str | None, ...], list[int]] = {}
    for file in files:
        if is_small(file.size_bytes, target_bytes):
            small.setdefault(file.partition, []).append(file.size_bytes)
    several = [size for sizes in small.values() if len(sizes) > 1 for size in sizes]
    return len(several), sum(several)


def is_compaction_due(small: int, at: int) -> bool:
    """True if a run compacts after its commit: enough small files wait; 0: never."""
    return 0 < at <= small


def kept_for(configuration: Mapping[str, str | None], wanted: timedelta | None = None) -> timedelta:
    """Return how long unused files are kept: as requested, and no shorter than is safe.
    `configuration`: the table's properties. Raises SettingsError for less, and for an invalid
    property.
    """
    text = configuration.get(KEEPS_FILES)
    retention = interval(text) if text else timedelta()
    if retention is None:
        action = "ALTER TABLE ... SET TBLPROPERTIES, its form: interval 30 days"
        raise SettingsError(
            f"The table's {KEEPS_FILES} is {text!r}, which is not understood",
            key=KEEPS_FILES,
            action=action,
        )
    least = max(LEAST_KEPT, retention)
    if wanted is not None and wanted < least:
        if retention > LEAST_KEPT:
            why = "the table's property says so"
        else:
            why = "runs, RESTORE and proofs may need them"
        action = f"Pass --retain {least.days + (least.seconds > 0)}d or more"
        raise SettingsError(
            f"Files stay for {least.days} days at least: {why}", key="--retain", action=action
        )
    return wanted or least


def reject_table_without_our_commits(table: Table | None, path: str) -> None:
    """Raises NotOurTable if no commit of this pipeline is in the table: its own pipeline maintains
    it.
    """
    if table is None or table.transaction_version is None:
        if table is None:
            message = "There is no table yet"
        else:
            message = "This pipeline has no commit in the table"
        raise NotOurTable(
            message,
            path=path,
            action="Check table.path, or run `etl run CONF` first: a pipeline maintains only a table that it has loaded",
        )


def interval(text: str) -> timedelta | None:
    """Delta's text for a duration, `interval 30 days`; None when it is none."""
    words = text.strip().lower().removeprefix("interval").strip()
    found = _INTERVAL.findall(words)
    if not found or _INTERVAL.sub("", words).strip():
        return None
    return sum((timedelta(**{f"{unit}s": int(count)}) for count, unit in found), timedelta())


Told = Mapping[str, str | SecretRef]
"""A key of an engine -> its value, or where that is found."""
_REGION_OF_ENDPOINTS = "us-east-1"
"""Region for signatures to a custom endpoint, which has none."""

_DAY_MS = 86_400_000


def is_probe_due(stored: Plan | None, now_ms: int) -> bool:
    """True if no stored plan shows that the store was probed today (UTC): a plan is stored only
    after a successful probe.
    """
    return stored is None or stored.created_at_ms // _DAY_MS != now_ms // _DAY_MS


def delta_rs_options(path: str, store: StoreSettings) -> Told:
    """Storage options of delta-rs."""
    kind = kind_of(path)
    if kind is StoreKind.S3:
        return _given(
            {
                "AWS_ENDPOINT_URL": store.endpoint,
                "AWS_REGION": _region(store),
                "AWS_ALLOW_HTTP": _yes(store.allow_http),
                "AWS_ACCESS_KEY_ID": store.access_key,
                "AWS_SECRET_ACCESS_KEY": store.secret_key,
            }
        )
    if kind is StoreKind.AZURE and store.keys_set:
        return _given(
            {
                "AZURE_STORAGE_ACCOUNT_NAME": account_of(path),
                "AZURE_STORAGE_ACCOUNT_KEY": store.account_key,
                "AZURE_STORAGE_ENDPOINT": store.endpoint,
                "allow_http": _yes(store.allow_http),
            }
        )
    return {}


def hadoop_options(path: str, store: StoreSettings) -> Told:
    """Settings of Hadoop's client, for this bucket or this account alone: others that a transform
    reads keep theirs.
    """
    kind = kind_of(path)
    if kind is StoreKind.S3:
        bucket = f"fs.s3a.bucket.{urlsplit(path).netloc}"
        return _given(
            {
                f"{bucket}.endpoint": store.endpoint,
                f"{bucket}.endpoint.region": _region(store),
                f"{bucket}.path.style.access": _yes(store.endpoint is not None),
                f"{bucket}.connection.ssl.enabled": "false"
                if (store.endpoint or "").startswith("http://")
                else None,
                f"{bucket}.access.key": store.access_key,
                f"{bucket}.secret.key": store.secret_key,
                f"{bucket}.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
                if store.access_key is not None
                else None,
            }
        )
    if kind is StoreKind.AZURE:
        return _given(
            {
                f"fs.azure.account.key.{_host(path)}": store.account_key,
                **_azure_elsewhere(path, store),
            }
        )
    return {}


def _azure_elsewhere(path: str, store: StoreSettings) -> Mapping[str, str | None]:
    """Settings of stores other than Azure that speak its blob protocol: another port, no
    hierarchical namespace.
    """
    if store.endpoint is None:
        return {}
    found, host = urlsplit(store.endpoint), _host(path)
    return {
        f"fs.azure.abfs.endpoint.{host}": f"{found.hostname}:{found.port or (443 if found.scheme == 'https' else 80)}",
        **(
            {
                "fs.azure.always.use.https": "false",
                "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
            }  # the other one wants TLS
            if found.scheme == "http"
            else {}
        ),
        "fs.azure.account.hns.enabled": "false",
        "fs.azure.fns.account.service.type": "BLOB",
    }


def _region(store: StoreSettings) -> str | None:
    return store.region or (_REGION_OF_ENDPOINTS if store.endpoint is not None else None)


def _host(path: str) -> str:
    return urlsplit(path).netloc.rpartition("@")[2]


def _yes(value: bool) -> str | None:
    return "true" if value else None


def _given(values: Mapping[str, str | SecretRef | None]) -> Told:
    return {key: value for key, value in values.items() if value is not None}


LOG_STORE = "spark.delta.logStore"
_OF_ALL = f"{LOG_STORE}.class"
OURS = "offset_range_etl.ConditionalLogStore"
_OF_AZURE = "io.delta.storage.AzureLogStore"
"""Delta's own choice there, set explicitly so that its jars are found."""
REDACTED = "spark.redaction.regex"
_AS_SPARK_HAS_IT = "(?i)secret|password|token|access[.]?key"
_KEY_OF_AZURE = "fs.azure.account.key"
_KEYS_OF_STORES = "access[.]key|secret[.]key|account[.]key"
_WAREHOUSE = "spark.sql.warehouse.dir"
_HADOOP = "3.5.0"
_PACKAGES: Mapping[str, str] = {
    f"{LOG_STORE}.s3a.impl": f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
    f"{LOG_STORE}.abfss.impl": f"org.apache.hadoop:hadoop-azure:{_HADOOP}",
}
"""Packages by the setting that needs them: Hadoop's clients, in the release of pyspark's."""
_CREATES_BLINDLY = "create"
_CLASS_OF_S3, _OF_S3A = "fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem"
_STATISTICS_OF_AZURE = "fs.azure.metrics.collection.enabled"
"""Hadoop's client sends statistics when its JVM ends, and retries an unavailable store thirty
times.
"""
_THROTTLED_TRIES = 8
"""Each wait is twice the one before, from a tenth of a second: S3A's own twenty are over after a
day, these within three minutes.
"""


def settings_for(path: str, spark: Mapping[str, str]) -> dict[str, str]:
    """Return Spark settings that the path needs; the conf's take precedence. Raises as
    `reject_unsafe_s3a_settings`.
    """
    kind = kind_of(path)
    if kind is StoreKind.S3:
        reject_unsafe_s3a_settings(
            path,
            {
                key.removeprefix("spark.hadoop."): value
                for key, value in spark.items()
                if key.startswith("spark.hadoop.")
            },
        )
        return _log_of_s3(spark)
    if kind is StoreKind.AZURE:
        chosen = any(
            key in spark for key in (_OF_ALL, f"{LOG_STORE}.abfs.impl", f"{LOG_STORE}.abfss.impl")
        )
        if chosen:
            own = {}
        else:
            own = {f"{LOG_STORE}.{scheme}.impl": _OF_AZURE for scheme in ("abfs", "abfss")}
        widened = None if REDACTED in spark else redacting((_KEY_OF_AZURE,), None)
        return {**own, **({REDACTED: widened} if widened else {})}
    return {}


def settings_for_any(spark: Mapping[str, str]) -> dict[str, str]:
    """Return the same if the table's store is unknown yet; harmless for others. The catalog's
    provider adds Hadoop's jars.
    """
    return _log_of_s3(spark)


def place_of_catalog(spark: Mapping[str, str], store: StoreSettings) -> str | None:
    """Return the location where a session's catalog puts tables by default, if it is a store; with
    the keys of `store` that fit.
    """
    place = spark.get(_WAREHOUSE, "")
    if kind_of(place) is None:
        return None
    try:
        reject_unsupported_store_keys(place, store, None)
    except SettingsError:  # they are another store's, in which the table's schema is
        return TablePath(place, StoreSettings())
    return TablePath(place, store)


def without_ours(settings: Mapping[str, str], submitted: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without our log store if spark-submit names another one: two ways to
    commit to a table do not exclude each other.
    """
    if not is_ours(settings):
        return dict(settings)
    return {key: value for key, value in settings.items() if value != OURS} | _log_of_s3(submitted)


def is_ours(settings: Mapping[str, str]) -> bool:
    """True if a session with these settings uses our log store on S3."""
    return settings.get(f"{LOG_STORE}.s3a.impl") == OURS


def packages(settings: Mapping[str, str]) -> list[str]:
    """Return the Maven packages that such a session needs in addition to Delta's."""
    return [package for key, package in _PACKAGES.items() if key in settings]


def reject_unsafe_s3a_settings(path: str, hadoop: Mapping[str, str | None]) -> None:
    """Raises SettingsError where Hadoop's settings make S3A create a file over one that is there,
    or put nothing on a condition.
    """
    bucket = urlsplit(path).netloc
    for key in (f"fs.s3a.bucket.{bucket}.performance.flags", "fs.s3a.performance.flags"):
        flags = {flag.lower() for flag in re.split(r"[\s,]+", hadoop.get(key) or "") if flag}
        if flags & {_CREATES_BLINDLY, "*"}:
            action = "Leave `create` out of it: the other flags do no harm"
            raise SettingsError(
                f"{key} has the flag create: commits could replace one another",
                key=f"spark.hadoop.{key}",
                action=action,
            )
    for name, harm, message in (
        (
            "create.performance",
            "true",
            "makes files over those that are there: commits could replace one another",
        ),
        (
            "create.conditional.enabled",
            "false",
            "keeps S3A from putting on a condition: commits could replace one another",
        ),
    ):
        for key in (f"fs.s3a.bucket.{bucket}.{name}", f"fs.s3a.{name}"):
            if (hadoop.get(key) or "").strip().lower() == harm:
                raise SettingsError(
                    f"{key} {message}", key=f"spark.hadoop.{key}", action="Leave it out"
                )


def redacting(keys: Sequence[str], pattern: str | None) -> str | None:
    """By which expression Spark leaves these settings of Hadoop's out of its event log and its
    pages; None: by the one that it has.

    `pattern`: what the session has, in Java's words; None: Spark's own. One that is not translated
    is taken not to know them.
    """
    shown = _AS_SPARK_HAS_IT if pattern is None else pattern
    try:
        found = java_pattern(shown)
        knows = all(found.search(key) for key in keys)
    except NotTranslated:
        knows = not keys
    return None if knows else f"{_KEYS_OF_STORES}|{shown}"


def keys_that_matter(path: str) -> tuple[str, ...]:
    """Return Hadoop's settings that `reject_unsafe_s3a_settings` checks."""
    names = ("performance.flags", "create.performance", "create.conditional.enabled")
    return tuple(
        f"{of}.{name}"
        for of in (f"fs.s3a.bucket.{urlsplit(path).netloc}", "fs.s3a")
        for name in names
    )


def hadoop_defaults(path: str) -> dict[str, str]:
    """Return Hadoop's defaults where neither conf nor Hadoop's files set a value. A catalog may use
    `s3://`, which Hadoop itself does not know.
    """
    if kind_of(path) is StoreKind.AZURE:
        return {_STATISTICS_OF_AZURE: "false"}
    if kind_of(path) is not StoreKind.S3:
        return {}
    return {
        "fs.s3a.retry.throttle.limit": str(_THROTTLED_TRIES),
        **({_CLASS_OF_S3: _OF_S3A} if path.startswith("s3://") else {}),
    }


def _log_of_s3(spark: Mapping[str, str]) -> dict[str, str]:
    """Return our log store, unless the conf chose one. Its choice for `s3` counts for `s3a`, too."""
    of_s3, of_s3a = f"{LOG_STORE}.s3.impl", f"{LOG_STORE}.s3a.impl"
    if _OF_ALL in spark or of_s3a in spark:
        return {}
    return {of_s3a: spark[of_s3]} if of_s3 in spark else {of_s3: OURS, of_s3a: OURS}


TIME_ZONE = "spark.sql.session.timeZone"
TIME_ZONE_OF_WORKERS = "spark.executorEnv.TZ"
"""The local time zone of Spark's Python workers, where Spark starts them with the session."""
UTC = "UTC"
_OF_UTC = frozenset(
    (
        "UTC",
        "Etc/UTC",
        "Zulu",
        "Etc/Zulu",
        "UCT",
        "Etc/UCT",
        "Universal",
        "Etc/Universal",
        "Z",
        "UT",
        "GMT",
        "Etc/GMT",
    )
)
_Offsets = tuple[BrokerPartition, int, int]
"""[from, until) of one log."""
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


class ZoneSource(str, Enum):
    """Where a time zone was configured."""

    CONF = f"{TIME_ZONE} of the conf"
    SPARK = f"{TIME_ZONE} of spark-submit, spark-defaults.conf or the session that was there before"
    DEFAULT = "the default"


@dataclass(frozen=True, slots=True)
class TimeZone:
    """The time zone of a Spark session."""

    name: str
    source: ZoneSource


def time_zone_of(conf: Mapping[str, str], configured: Mapping[str, str]) -> TimeZone:
    """Return the zone of a session with these settings; `configured` are those that Spark has from
    elsewhere.
    """
    if conf.get(TIME_ZONE):
        return TimeZone(conf[TIME_ZONE], ZoneSource.CONF)
    if configured.get(TIME_ZONE):
        return TimeZone(configured[TIME_ZONE], ZoneSource.SPARK)
    return TimeZone(UTC, ZoneSource.DEFAULT)


def is_same_zone(one: str, other: str) -> bool:
    """True if both names stand for one zone; names of UTC and of fixed offsets are compared by
    their meaning.
    """
    return _meaning(one) == _meaning(other)


def _meaning(zone: str) -> str:
    minutes = offset_minutes(zone)
    return zone if minutes is None else str(minutes)


def offset_minutes(zone: str) -> int | None:
    """Minutes east of UTC; None for the name of a region."""
    if zone in _OF_UTC:
        return 0
    found = _OFFSET.fullmatch(zone)
    if found is None:
        return None
    minutes = int(found[2]) * 60 + int(found[3] or 0)
    return minutes if found[1] == "+" else -minutes


def local_zone(zone: str) -> str:
    """Return the zone as the environment variable TZ takes it: POSIX counts an offset the other way
    round.
    """
    minutes = offset_minutes(zone)
    if minutes is None:
        return zone
    if minutes == 0:
        return UTC
    hours, rest = divmod(abs(minutes), 60)
    sign, opposite = ("+", "-") if minutes > 0 else ("-", "+")
    return f"<{sign}{hours:02d}{rest:02d}>{opposite}{hours}:{rest:02d}"


def describe_time_zones(plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    """Describe that this run executes a plan under another time zone than the plan's, the last
    plan's or the live pipeline's.
    """
    newest = snapshot.ledger.newest
    if not plan.ranges:
        return
    if _is_other(plan.time_zone, snapshot):
        yield _told(plan, f"it was stored under {plan.time_zone}", snapshot)
    elif newest is not None and newest.id != plan.id and _is_other(newest.time_zone, snapshot):
        yield _told(plan, f"the plan before it was made under {newest.time_zone}", snapshot)
    if plan.kind is PlanKind.BACKFILL and _is_other(snapshot.live_time_zone, snapshot):
        yield _told(
            plan,
            f"the newest plan of the live pipeline was made under {snapshot.live_time_zone}",
            snapshot,
        )


def in_time_zone(plan: Plan, snapshot: Snapshot) -> Plan:
    """The plan as it is executed now: its commit names the zone in which its rows are made. Its id
    stays.
    """
    return replace(plan, time_zone=snapshot.time_zone or plan.time_zone)


def describe_replaced_time_zones(
    plan: Plan, loaded: Sequence[Plan], snapshot: Snapshot
) -> Iterator[str]:
    """The same of a replay, and of the plans whose rows it replaces; one sentence for each zone.

    `loaded` are the plans that are kept, in their order. Where none of them says more, the plan
    before the replay does.
    """
    by_zone = {
        one.time_zone: one
        for one in reversed(_loaded_last(plan, loaded))
        if one.time_zone is not None
    }
    for zone, one in by_zone.items():
        if _is_other(zone, snapshot):
            yield _told(
                plan, f"plan {one.number}, whose rows it replaces, was made under {zone}", snapshot
            )
    if not by_zone:
        yield from describe_time_zones(plan, snapshot)


def _loaded_last(plan: Plan, loaded: Sequence[Plan]) -> list[Plan]:
    """The plans that made the rows of these offsets, the newest first: a replay takes the place of
    what was before it.
    """
    left = [(r.log, r.from_offset, r.until_offset) for r in plan.ranges]
    found = list[Plan]()
    for one in reversed(loaded):
        rest = _without(left, one)
        if rest != left:
            found.append(one)
        left = rest
    return found


def _without(left: list[_Offsets], plan: Plan) -> list[_Offsets]:
    """These offsets without those that the plan loaded."""
    for r in plan.ranges:
        rest = list[_Offsets]()
        for log, start, until in left:
            if log != r.log or until <= r.from_offset or r.until_offset <= start:
                rest.append((log, start, until))
                continue
            parts = ((log, start, r.from_offset), (log, r.until_offset, until))
            rest += [part for part in parts if part[1] < part[2]]
        left = rest
    return left


def _is_other(zone: str | None, snapshot: Snapshot) -> bool:
    return (
        zone is not None
        and snapshot.time_zone is not None
        and not is_same_zone(zone, snapshot.time_zone)
    )


def _told(plan: Plan, before: str, snapshot: Snapshot) -> str:
    return (
        f"plan {plan.number} is executed under the time zone {snapshot.time_zone}, and {before}: dates and hours that Spark computes "
        f"from a moment may differ between their rows ({TIME_ZONE})"
    )
