"""How are a table's files laid out, maintained, and accessed in a store?

Lives here: rules for files and Parquet encodings, retention, options of stores.
Not here: columns and catalogs (table_rules.py), time zones (time_zones.py), reading and writing of
files (etl/io/delta).

Layout: where row groups and files end, encodings, file names. A task holds the rows of a row group
in memory, so these are memory bounds first.

Maintenance: files that no version needs are kept for a week at least, or as long as the table's
property requires: RESTORE, a run that counts rows after a crash, and running tasks need them.

Stores: the options that Spark and delta-rs receive, as references to secrets (ADR 35); nothing is
set that the conf does not set, so each engine uses its own chain of credentials. Delta's log store
for S3 coordinates the drivers of one JVM only; ours creates each commit by a conditional put, as
delta-rs does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from etl.errors import NotOurTable, SettingsError
from etl.ledger.topic_filters import NotTranslated, java_pattern
from etl.model.plans import Codec, FileOptions, Plan
from etl.model.security import SecretRef
from etl.model.snapshot import Table
from etl.settings.table import (
    StoreKind,
    StoreSettings,
    TablePath,
    account_of,
    kind_of,
    reject_unsupported_store_keys,
)

OPEN_FILES = 32
"""Number of files that a task has open at most, one per value of the table's partitions. At the
limit, the least recently used file ends.
"""
PAGE_BYTES = 2**20
"""Bytes of a column's page, as in other Parquet writers; a quarter of it made encoding 20 % slower.
"""
MOST_ROWS_AT_A_TIME = 4096
"""Rows encoded per call: a page ends after a call, so large rows take fewer."""
_REPEATED = ("topic", "partition", "timestampType", "broker_id", "message_index", "incarnation")
"""Columns with few values: a dictionary needs a few bits per value. For other columns the encoder
would try one, row by row, and drop it.
"""
_ASCENDING = ("offset",)
"""Columns with similar neighbouring values."""
_SELDOM_REPEATED = ("key", "value", *_ASCENDING, "timestamp", "headers")
"""Columns of the raw table without dictionary, also if a transform changes their type."""
_TRIED = ("string", "int8", "int16", "int32", "int64", "date32[day]")
"""Types of added columns that get a dictionary. No floats: some readers do not find -0.0 in a
dictionary for 0.0.
"""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_LEVELS: Mapping[Codec, int] = {Codec.ZSTD: 1}


def is_row_group(write_buffer_bytes: int, held_in_all: int, wanted: FileOptions) -> bool:
    """Return True if buffered rows become a row group now.

    By the bytes of this file and of all files of the task. No row group exceeds a file.
    """
    if held_in_all >= wanted.write_buffer_bytes:
        return True
    return write_buffer_bytes >= min(wanted.row_group_bytes, wanted.file_bytes)


def rows_at_a_time(rows: int, size: int) -> int:
    """Return the number of rows that one call encodes: about a page, or fewer.

    `size`: bytes of `rows` rows.
    """
    return max(1, min(MOST_ROWS_AT_A_TIME, PAGE_BYTES * rows // max(1, size)))


def is_whole_file(written_bytes: int, file_bytes: int) -> bool:
    """Return True if the file ends after its last row group, by its bytes."""
    return written_bytes >= file_bytes


def dictionary_columns(columns: Mapping[str, str]) -> list[str]:
    """Return the columns that get a dictionary. `columns`: name -> Arrow type."""
    found = []
    for name, kind in columns.items():
        is_tried = name not in _SELDOM_REPEATED and kind in _TRIED
        if name in _REPEATED or is_tried:
            found.append(name)
    return found


def delta_encoded_columns(columns: Mapping[str, str]) -> list[str]:
    """Return the columns that are encoded as differences (DELTA_BINARY_PACKED)."""
    encoded = []
    for name, kind in columns.items():
        if name in _ASCENDING and kind.startswith("int"):
            encoded.append(name)
    return encoded


def level_of(codec: Codec) -> int | None:
    """Return the compression level of a codec; None: it has none."""
    return _LEVELS.get(codec)


def name_of_file(
    values: Mapping[str, str | None], task: int, attempt: int, unique: str, codec: Codec
) -> str:
    """Return the path of a file below the table's directory.

    In a directory per partition value, as in Spark, if the values have plain names. Only the log
    defines partition values (Delta protocol, "Add File"), so other values need no escapes, which
    readers treat differently. `unique` separates attempts; it begins with the id of the write.
    """
    suffix = ""
    if codec is not Codec.NONE:
        suffix = f".{codec.value}"
    name = f"part-{task:05d}-{attempt}-{unique}{suffix}.parquet"
    folders = []
    for column, value in values.items():
        text = value
        if text is None:
            text = "__HIVE_DEFAULT_PARTITION__"
        if not _PLAIN_NAME.fullmatch(column) or not _PLAIN_NAME.fullmatch(text):
            return name
        folders.append(f"{column}={text}")
    return "/".join([*folders, name])


def names_of_write(write_id: str) -> str:
    """Return the pathlib pattern of the names of all files of one write, in any folder."""
    return f"part-*-{write_id}-*.parquet"


KEEPS_FILES = "delta.deletedFileRetentionDuration"
LEAST_KEPT = timedelta(days=7)
"""Delta's own default."""
_INTERVAL = re.compile(r"(\d+)\s*(week|day|hour|minute|second|millisecond|microsecond)s?")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the table's present version."""

    partition: tuple[str | None, ...]
    """Values of the partition columns."""
    size_bytes: int


def is_small(size_bytes: int, target_bytes: int) -> bool:
    """Return True if a file has less than half of the target size."""
    return size_bytes * 2 < target_bytes


def small_files(files: Sequence[DataFile], target_bytes: int) -> tuple[int, int]:
    """Return the number and bytes of small files that have another small one in their partition."""
    small: dict[tuple[str | None, ...], list[int]] = {}
    for file in files:
        if is_small(file.size_bytes, target_bytes):
            small.setdefault(file.partition, []).append(file.size_bytes)
    count = 0
    size = 0
    for sizes in small.values():
        if len(sizes) > 1:
            count += len(sizes)
            size += sum(sizes)
    return count, size


def is_compaction_due(small: int, at: int) -> bool:
    """Return True if a run compacts after its commit: there are enough small files; 0: never."""
    return 0 < at <= small


def kept_for(configuration: Mapping[str, str | None], wanted: timedelta | None = None) -> timedelta:
    """Return how long unused files are kept: as requested, and no shorter than is safe.

    `configuration`: the table's properties. Raises SettingsError for less, and for an invalid
    property.
    """
    text = configuration.get(KEEPS_FILES)
    retention: timedelta | None = timedelta()
    if text:
        retention = interval(text)
    if retention is None:
        message = f"The table's {KEEPS_FILES} is {text!r}, which is not understood"
        action = "Set it with ALTER TABLE ... SET TBLPROPERTIES, in the form: interval 30 days"
        raise SettingsError(message, key=KEEPS_FILES, action=action)

    least = max(LEAST_KEPT, retention)
    if wanted is not None and wanted < least:
        reason = "runs, RESTORE and proofs may need them"
        if retention > LEAST_KEPT:
            reason = f"the table's property {KEEPS_FILES} requires it"
        message = f"Files stay for {least.days} days at least: {reason}"
        action = f"Pass --retain {least.days + (least.seconds > 0)}d or more"
        raise SettingsError(message, key="--retain", action=action)
    return wanted or least


def reject_table_without_our_commits(table: Table | None, path: str) -> None:
    """Raise NotOurTable if the table has no commit of this pipeline: its own pipeline maintains
    it.
    """
    if table is None:
        message = "There is no table yet"
    elif table.transaction_version is None:
        message = "This pipeline has no commit in the table"
    else:
        return
    action = (
        "Check table.path, or run `etl run CONF` first: a pipeline maintains only a table that it "
        "has loaded"
    )
    raise NotOurTable(message, path=path, action=action)


def interval(text: str) -> timedelta | None:
    """Return the duration of a Delta interval, `interval 30 days`; None: it is not one."""
    words = text.strip().lower().removeprefix("interval").strip()
    found = _INTERVAL.findall(words)
    if not found or _INTERVAL.sub("", words).strip():
        return None
    duration = timedelta()
    for count, unit in found:
        duration += timedelta(**{f"{unit}s": int(count)})
    return duration


EngineOptions = Mapping[str, str | SecretRef]
"""Option of an engine -> its value, or the reference to its secret."""
_REGION_OF_ENDPOINTS = "us-east-1"
"""Region of signatures for a custom endpoint: such an endpoint has no region of its own."""

_DAY_MS = 86_400_000


def is_probe_due(stored: Plan | None, now_ms: int) -> bool:
    """Return True if no stored plan shows that the store was probed today (UTC).

    A plan is stored only after a successful probe.
    """
    return stored is None or stored.origin.created_at_ms // _DAY_MS != now_ms // _DAY_MS


def delta_rs_options(path: str, store: StoreSettings) -> EngineOptions:
    """Return the storage options of delta-rs."""
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


def hadoop_options(path: str, store: StoreSettings) -> EngineOptions:
    """Return the settings of Hadoop's client for this bucket or account.

    Other buckets and accounts, which a transform reads, keep theirs.
    """
    kind = kind_of(path)
    if kind is StoreKind.S3:
        bucket = f"fs.s3a.bucket.{urlsplit(path).netloc}"
        is_plaintext = (store.endpoint or "").startswith("http://")
        has_tls = None
        if is_plaintext:
            has_tls = "false"
        provider = None
        if store.access_key is not None:
            provider = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
        return _given(
            {
                f"{bucket}.endpoint": store.endpoint,
                f"{bucket}.endpoint.region": _region(store),
                f"{bucket}.path.style.access": _yes(store.endpoint is not None),
                f"{bucket}.connection.ssl.enabled": has_tls,
                f"{bucket}.access.key": store.access_key,
                f"{bucket}.secret.key": store.secret_key,
                f"{bucket}.aws.credentials.provider": provider,
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
    """Return the settings of stores other than Azure that speak its blob protocol: another port, no
    hierarchical namespace.
    """
    if store.endpoint is None:
        return {}
    endpoint = urlsplit(store.endpoint)
    host = _host(path)
    is_plaintext = endpoint.scheme == "http"
    default_port = 80
    if endpoint.scheme == "https":
        default_port = 443
    options = {
        f"fs.azure.abfs.endpoint.{host}": f"{endpoint.hostname}:{endpoint.port or default_port}"
    }
    if is_plaintext:
        options["fs.azure.always.use.https"] = "false"
        # The default library requires TLS.
        options["fs.azure.networking.library"] = "JDK_HTTP_URL_CONNECTION"
    options["fs.azure.account.hns.enabled"] = "false"
    options["fs.azure.fns.account.service.type"] = "BLOB"
    return options


def _region(store: StoreSettings) -> str | None:
    if store.region:
        return store.region
    if store.endpoint is None:
        return None
    return _REGION_OF_ENDPOINTS


def _host(path: str) -> str:
    return urlsplit(path).netloc.rpartition("@")[2]


def _yes(value: bool) -> str | None:
    if value:
        return "true"
    return None


def _given(values: Mapping[str, str | SecretRef | None]) -> EngineOptions:
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
PACKAGES_OF_STORES: Mapping[str, str] = {
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
        prefix = "spark.hadoop."
        hadoop = {}
        for key, value in spark.items():
            if key.startswith(prefix):
                hadoop[key.removeprefix(prefix)] = value
        reject_unsafe_s3a_settings(path, hadoop)
        return _log_of_s3(spark)
    if kind is not StoreKind.AZURE:
        return {}

    settings: dict[str, str] = {}
    log_stores = [f"{LOG_STORE}.{scheme}.impl" for scheme in ("abfs", "abfss")]
    if not spark.keys() & {_OF_ALL, *log_stores}:
        settings = dict.fromkeys(log_stores, _OF_AZURE)
    if REDACTED not in spark:
        pattern = redacting((_KEY_OF_AZURE,), None)
        if pattern:
            settings[REDACTED] = pattern
    return settings


def settings_for_any(spark: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a table in an unknown store; they are harmless for other stores.

    The catalog's provider adds Hadoop's jars.
    """
    return _log_of_s3(spark)


def place_of_catalog(spark: Mapping[str, str], store: StoreSettings) -> str | None:
    """Return the session catalog's default location of tables, if it is in a store.

    With the keys of `store` if they fit.
    """
    place = spark.get(_WAREHOUSE, "")
    if kind_of(place) is None:
        return None
    try:
        reject_unsupported_store_keys(place, store, None)
    except SettingsError:  # The keys are those of another store, the one of the table's schema.
        return TablePath(place, StoreSettings())
    return TablePath(place, store)


def without_own_log_store(
    settings: Mapping[str, str], submitted: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings without our log store if spark-submit names another one.

    Two ways to commit to a table do not exclude each other.
    """
    if not is_ours(settings):
        return dict(settings)
    others = {key: value for key, value in settings.items() if value != OURS}
    return others | _log_of_s3(submitted)


def is_ours(settings: Mapping[str, str]) -> bool:
    """Return True if a session with these settings uses our log store on S3."""
    return settings.get(f"{LOG_STORE}.s3a.impl") == OURS


def packages(settings: Mapping[str, str]) -> list[str]:
    """Return the Maven packages that such a session needs in addition to Delta's."""
    return [package for key, package in PACKAGES_OF_STORES.items() if key in settings]


def reject_unsafe_s3a_settings(path: str, hadoop: Mapping[str, str | None]) -> None:
    """Raise SettingsError if Hadoop's settings let S3A replace existing files, or turn conditional
    puts off.
    """
    bucket = urlsplit(path).netloc
    for key in (f"fs.s3a.bucket.{bucket}.performance.flags", "fs.s3a.performance.flags"):
        flags = re.split(r"[\s,]+", (hadoop.get(key) or "").lower())
        if _CREATES_BLINDLY in flags or "*" in flags:
            message = f"{key} has the flag create: commits could replace one another"
            action = "Leave `create` out of it: the other flags do no harm"
            raise SettingsError(message, key=f"spark.hadoop.{key}", action=action)

    harmful = (
        (
            "create.performance",
            "true",
            "creates files over existing ones: commits could replace one another",
        ),
        (
            "create.conditional.enabled",
            "false",
            "turns S3A's conditional puts off: commits could replace one another",
        ),
    )
    for name, harmful_value, effect in harmful:
        for key in (f"fs.s3a.bucket.{bucket}.{name}", f"fs.s3a.{name}"):
            if (hadoop.get(key) or "").strip().lower() == harmful_value:
                action = f"Remove {key}"
                raise SettingsError(f"{key} {effect}", key=f"spark.hadoop.{key}", action=action)


def redacting(keys: Sequence[str], pattern: str | None) -> str | None:
    """Return the expression that hides these Hadoop settings in Spark's event log and pages.

    None: the session's own hides them. `pattern`: the session's, in Java's syntax; None: Spark's
    default. An expression that cannot be translated counts as one that does not hide them.
    """
    shown = pattern
    if shown is None:
        shown = _AS_SPARK_HAS_IT
    try:
        found = java_pattern(shown)
        knows = all(found.search(key) for key in keys)
    except NotTranslated:
        knows = not keys
    if knows:
        return None
    return f"{_KEYS_OF_STORES}|{shown}"


def keys_that_matter(path: str) -> tuple[str, ...]:
    """Return Hadoop's settings that `reject_unsafe_s3a_settings` checks."""
    names = ("performance.flags", "create.performance", "create.conditional.enabled")
    bucket = urlsplit(path).netloc
    of_bucket = [f"fs.s3a.bucket.{bucket}.{name}" for name in names]
    of_all = [f"fs.s3a.{name}" for name in names]
    return (*of_bucket, *of_all)


def hadoop_defaults(path: str) -> dict[str, str]:
    """Return defaults for Hadoop settings that neither the conf nor Hadoop's files set."""
    if kind_of(path) is StoreKind.AZURE:
        return {_STATISTICS_OF_AZURE: "false"}
    if kind_of(path) is not StoreKind.S3:
        return {}
    defaults = {"fs.s3a.retry.throttle.limit": str(_THROTTLED_TRIES)}
    if path.startswith("s3://"):
        # A catalog may use this scheme, which Hadoop itself does not support.
        defaults[_CLASS_OF_S3] = _OF_S3A
    return defaults


def _log_of_s3(spark: Mapping[str, str]) -> dict[str, str]:
    """Return our log store, unless the conf sets one. A setting for `s3` counts for `s3a`, too."""
    of_s3, of_s3a = f"{LOG_STORE}.s3.impl", f"{LOG_STORE}.s3a.impl"
    if _OF_ALL in spark or of_s3a in spark:
        return {}
    if of_s3 in spark:
        return {of_s3a: spark[of_s3]}
    return {of_s3: OURS, of_s3a: OURS}
