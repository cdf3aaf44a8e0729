"""What Spark needs beside Delta for a table in a store: a log that keeps writers apart, jars, and
what must not be set.

Pure functions of values. Delta's own log for S3 keeps the drivers of one JVM apart and no others,
and replaces what delta-rs committed (adr/0035); ours makes each file of it by one put on a
condition, as delta-rs does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from etl.errors import SettingsError
from etl.ledger.topic_filters import NotTranslated, java_pattern
from etl.settings.table import StoreKind, StoreSettings, TablePath, kind_of, refuse_unfit_store

LOG_STORE = "spark.delta.logStore"
_OF_ALL = f"{LOG_STORE}.class"
OURS = "offset_range_etl.ConditionalLogStore"
_OF_AZURE = "io.delta.storage.AzureLogStore"
"""Delta's own choice there, said so that jars are found by it."""
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
"""By the setting that says that a session writes there: Hadoop's client for it, of the release that
pyspark brings.
"""
_CREATES_BLINDLY = "create"
_CLASS_OF_S3, _OF_S3A = "fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem"
_STATISTICS_OF_AZURE = "fs.azure.metrics.collection.enabled"
"""Hadoop's client sends the account figures of itself when its JVM ends, and asks a store that is
away thirty times before it does.
"""
_THROTTLED_TRIES = 8
"""Each wait is twice the one before, from a tenth of a second: S3A's own twenty are over after a
day, these within three minutes.
"""


def settings_for(path: str, spark: Mapping[str, str]) -> dict[str, str]:
    """Spark settings that a table at that path needs beside those of the conf, which win over them.
    Raises as `refuse_unsafe`.
    """
    kind = kind_of(path)
    if kind is StoreKind.S3:
        refuse_unsafe(
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
        own = (
            {}
            if chosen
            else {f"{LOG_STORE}.{scheme}.impl": _OF_AZURE for scheme in ("abfs", "abfss")}
        )
        widened = None if REDACTED in spark else redacting((_KEY_OF_AZURE,), None)
        return {**own, **({REDACTED: widened} if widened else {})}
    return {}


def settings_for_any(spark: Mapping[str, str]) -> dict[str, str]:
    """The same where nobody knows yet in which store the table is: how Spark keeps its log there
    does no harm elsewhere.

    Jars of Hadoop's clients are left to whoever gave the session its catalog.
    """
    return _log_of_s3(spark)


def place_of_catalog(spark: Mapping[str, str], store: StoreSettings) -> str | None:
    """Where a session's catalog keeps tables of which nothing else is said, where that is a store;
    with the keys of `store` that fit it.
    """
    place = spark.get(_WAREHOUSE, "")
    if kind_of(place) is None:
        return None
    try:
        refuse_unfit_store(place, store, None)
    except SettingsError:  # they are another store's, in which the table's schema is
        return TablePath(place, StoreSettings())
    return TablePath(place, store)


def without_ours(settings: Mapping[str, str], submitted: Mapping[str, str]) -> dict[str, str]:
    """The settings, without our log where spark-submit was told of another: two ways to commit to
    one table do not keep one another out.
    """
    if not is_ours(settings):
        return dict(settings)
    return {key: value for key, value in settings.items() if value != OURS} | _log_of_s3(submitted)


def is_ours(settings: Mapping[str, str]) -> bool:
    """Whether a session with these settings keeps Delta's log on S3 by our class."""
    return settings.get(f"{LOG_STORE}.s3a.impl") == OURS


def packages(settings: Mapping[str, str]) -> list[str]:
    """Maven packages that such a session needs beside Delta's."""
    return [package for key, package in _PACKAGES.items() if key in settings]


def refuse_unsafe(path: str, hadoop: Mapping[str, str | None]) -> None:
    """Raises SettingsError where Hadoop's settings make S3A create a file over one that is there,
    or put nothing on a condition.
    """
    bucket = urlsplit(path).netloc
    for key in (f"fs.s3a.bucket.{bucket}.performance.flags", "fs.s3a.performance.flags"):
        flags = {flag.lower() for flag in re.split(r"[\s,]+", hadoop.get(key) or "") if flag}
        if flags & {_CREATES_BLINDLY, "*"}:
            check = "leave `create` out of it: the other flags do no harm"
            raise SettingsError(
                f"{key} has the flag create: commits could replace one another",
                key=f"spark.hadoop.{key}",
                check=check,
            )
    for name, harm, what in (
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
                    f"{key} {what}", key=f"spark.hadoop.{key}", check="leave it out"
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
    """Those of Hadoop's that `refuse_unsafe` looks at."""
    names = ("performance.flags", "create.performance", "create.conditional.enabled")
    return tuple(
        f"{of}.{name}"
        for of in (f"fs.s3a.bucket.{urlsplit(path).netloc}", "fs.s3a")
        for name in names
    )


def unless_told(path: str) -> dict[str, str]:
    """What Hadoop's client is told of where nobody, neither conf nor Hadoop's files, said another
    thing than its own default.

    A catalog may name places by `s3://`, by which Hadoop itself knows no store.
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
    """Ours, unless the conf chose one. What it chose for `s3` is for `s3a`, too: by that scheme
    Spark is told of either path.
    """
    of_s3, of_s3a = f"{LOG_STORE}.s3.impl", f"{LOG_STORE}.s3a.impl"
    if _OF_ALL in spark or of_s3a in spark:
        return {}
    return {of_s3a: spark[of_s3]} if of_s3 in spark else {of_s3: OURS, of_s3a: OURS}
