"""A session and the store that a table lies in: Hadoop is told of it once the session is there, so
that no secret is on a command line.

Secrets are in Hadoop's configuration from then on, which Spark hands to its tasks; in Spark's own
settings, and so in its event log, they never are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etl.decide.table_storage import (
    LOG_STORE,
    OURS,
    REDACTED,
    keys_that_matter,
    redacting,
    refuse_unsafe,
    told_hadoop,
    unless_told,
)
from etl.errors import SettingsError
from etl.model.security import SecretRef
from etl.settings.secrets import resolve_secret
from etl.settings.table import StoreKind, kind_of, store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS = "core-default.xml"
"""Hadoop's own, in its jar."""
_log = logging.getLogger(__name__)
_KEYS = {
    "access.key": "table.store.access_key",
    "secret.key": "table.store.secret_key",
    "account.key": "table.store.account_key",
}


def enter_store(session: SparkSession, path: str) -> None:
    """Tell the session's Hadoop how the store of a table is reached; nothing for a folder, or where
    the conf says nothing.

    Raises SettingsError for a secret that is not to be found, for Hadoop's settings by which
    commits could replace one another, and where the session lacks the class of our log.
    """
    kind = kind_of(path)
    if kind is None:
        return
    jvm: Any = session._jvm  # no public way to it
    hadoop: Any = session._jsc.hadoopConfiguration()
    if kind is StoreKind.S3:
        refuse_unsafe(path, {key: hadoop.get(key) for key in keys_that_matter(path)})
        _refuse_without_log_store(session, jvm, path)
    for key, ours in unless_told(path).items():
        if list(hadoop.getPropertySources(key) or [_DEFAULTS])[-1:] == [_DEFAULTS]:
            hadoop.set(key, ours)
    told = told_hadoop(path, store_of(path))
    _redact(session, [key for key, value in told.items() if isinstance(value, SecretRef)])
    for key, value in told.items():
        if isinstance(value, SecretRef):
            with _untold():
                hadoop.set(key, resolve_secret(value, _key_of(key)))
        else:
            hadoop.set(key, value)


@contextlib.contextmanager
def _untold() -> Iterator[None]:
    """Each call into the JVM is a line of py4j's log at DEBUG, with what it is called with."""
    quiet = logging.getLogger("py4j.clientserver"), logging.getLogger("py4j.java_gateway")
    before = [logger.disabled for logger in quiet]
    try:
        for logger in quiet:
            logger.disabled = True
        yield
    finally:
        for logger, was in zip(quiet, before, strict=True):
            logger.disabled = was


def _redact(session: SparkSession, keys: list[str]) -> None:
    """Before Hadoop is told a secret: whenever files or jars are added later, Spark lists Hadoop's
    settings in its event log and pages.

    What is left out there is looked up in the context's own settings each time: a session that was
    there before leaves it out, too.
    """
    jsc: Any = session._jsc  # no public way to it
    conf = jsc.sc().conf()
    widened = redacting(keys, conf.get(REDACTED) if conf.contains(REDACTED) else None)
    if widened is not None:
        conf.set(REDACTED, widened)


def _refuse_without_log_store(session: SparkSession, jvm: Any, path: str) -> None:
    conf = session.sparkContext.getConf()
    chosen = conf.get(f"{LOG_STORE}.s3a.impl") or conf.get(f"{LOG_STORE}.class")
    if chosen != OURS:
        _log.warning(
            "the session commits on S3 by %s: one driver and one kind of writer at a time, or commits to %s may "
            "replace one another",
            chosen or "Delta's default",
            path,
        )
        return
    try:
        jvm.java.lang.Class.forName(
            OURS, True, jvm.java.lang.Thread.currentThread().getContextClassLoader()
        )
    except Exception as error:  # whatever py4j makes of ClassNotFoundException
        check = "spark-submit --jars with etl/edges/spark/log_store/log_store.jar, of the package or out of its zip, and with hadoop-aws"
        raise SettingsError(
            "the session lacks the class that keeps writers of the table's log apart",
            key=f"spark.{LOG_STORE}",
            path=path,
            check=check,
        ) from error


def _key_of(key: str) -> str:
    return next(name for part, name in _KEYS.items() if part in key)
