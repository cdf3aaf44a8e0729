"""What do Spark's catalogs say about a table, and what must a session know of its store?

Catalogs are asked through the session's own objects; no table file is read. They are configured by
`spark.sql.catalog.NAME`; `spark_catalog` is a Hive metastore if spark.sql.catalogImplementation is
hive.

Store credentials are set in Hadoop's configuration after the session has started: never on a
command line, in Spark's settings or in its event log.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etl.decide.table_rules import cannot_be, innermost, known_cause, meant_by, not_made, statement
from etl.decide.table_storage import (
    LOG_STORE,
    OURS,
    REDACTED,
    hadoop_defaults,
    hadoop_options,
    keys_that_matter,
    redacting,
    reject_unsafe_s3a_settings,
)
from etl.errors import EtlError, SettingsError
from etl.model.security import SecretRef
from etl.model.snapshot import CatalogEntry
from etl.settings.secrets import resolve_secret
from etl.settings.table import StoreKind, kind_of, store_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_KEY = "table.name"
_OF_SESSION = "spark_catalog"
_NOT_THERE = frozenset(("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"))
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")
_NO_PLUGIN = re.compile(
    r"(?i)catalog plugin class|plugin class for catalog|does not implement CatalogPlugin"
)
_CAUSES_MAX = 20


def look_up(session: SparkSession, name: str) -> CatalogEntry | None:
    """Return what the catalog has for CATALOG.SCHEMA.TABLE or SCHEMA.TABLE; None for an unknown
    table. Raises SettingsError for a catalog that Spark does not know, TableUnreachable if one
    cannot be asked.
    """
    jvm: Any = session._jvm  # no public way to it
    try:
        catalog, namespace, table = _in_catalog(session, name)
        found = catalog.loadTable(
            jvm.org.apache.spark.sql.connector.catalog.Identifier.of(namespace, table)
        )
        return _entry(jvm, str(catalog.name()), found)
    except Exception as error:  # whatever py4j and pyspark make of it
        if condition_of(error) in _NOT_THERE:
            return None
        raise _refusal(error, name, session) from error


def place_to_be(session: SparkSession, name: str) -> str | None:
    """Return where the catalog would create this table, in Hadoop's form; None if it does not say,
    or lacks the schema.
    """
    jvm: Any = session._jvm  # no public way to it
    try:
        catalog, namespace, table = _in_catalog(session, name)
        if str(catalog.name()) == _OF_SESSION:  # which may write a name in small letters
            found = jvm.org.apache.spark.sql.catalyst.TableIdentifier(
                table, jvm.scala.Option.apply(namespace[0])
            )
            return str(
                session._jsparkSession.sessionState().catalog().defaultTablePath(found).toString()
            )
        place = catalog.loadNamespaceMetadata(namespace).get("location")
    except Exception:  # whatever py4j and pyspark make of it, also of a catalog without schemas: who has it make the table is told
        return None
    return f"{str(place).rstrip('/')}/{table}" if place else None


def _in_catalog(session: SparkSession, name: str) -> tuple[Any, Any, str]:
    """The catalog of a name, its schema as Java's array of names, and the table's own name. Raises
    what py4j and pyspark make of it.
    """
    *above, schema, table = name.split(".")
    jvm: Any = session._jvm  # no public way to it
    manager: Any = session._jsparkSession.sessionState().catalogManager()
    namespace = session.sparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]
    namespace[0] = schema
    return manager.catalog(above[0]) if above else manager.currentCatalog(), namespace, table


def kind_of_catalog(session: SparkSession, name: str) -> tuple[str, str, str]:
    """Which catalog a name is looked for in, and the session's settings of which kind its own is:
    see `reject_in_memory_catalog`.
    """
    *above, _, _ = name.split(".")
    catalog = above[0] if above else session.catalog.currentCatalog()
    settings = (
        session.conf.get(key, default)
        for key, default in (
            ("spark.sql.catalogImplementation", "in-memory"),
            ("spark.sql.catalog.spark_catalog", ""),
        )
    )
    return catalog, *(value or "" for value in settings)  # type: ignore[return-value]


def make_table(rows: DataFrame, name: str, partition_by: tuple[str, ...]) -> None:
    """Have the catalog make a Delta table with these columns, at the place that it chooses; one
    that is there by now is left alone.

    `rows` has none. Raises SettingsError where it does not, TableUnreachable where another try may
    do.
    """
    try:
        quoted = ".".join(f"`{part}`" for part in name.split("."))
        writing = rows.writeTo(quoted).using("delta")
        (
            writing.partitionedBy(*(rows[column] for column in partition_by))
            if partition_by
            else writing
        ).create()
    except Exception as error:  # whatever pyspark makes of it
        condition = condition_of(error)
        if condition == "TABLE_OR_VIEW_ALREADY_EXISTS":
            return
        creating = statement(
            name,
            ((field.name, field.dataType.simpleString()) for field in rows.schema.fields),
            partition_by,
        )
        causes = _causes(error)
        if condition is None and known_cause(causes):
            raise cannot_be(
                "make", name, causes, _settings(rows.sparkSession), instead=creating
            ) from error
        raise not_made(
            name, condition, condition or innermost(causes), str(error), creating
        ) from error


def condition_of(error: BaseException) -> str | None:
    """Spark's name of an error: TABLE_OR_VIEW_NOT_FOUND; None where it has none."""
    found = _CONDITION.search(str(error))
    return found[1] if found else None


def _entry(jvm: Any, catalog: str, table: Any) -> CatalogEntry:
    """Return what the catalog itself has: other properties of Delta's class are read from the
    table's log, wherever that is.
    """
    kind = str(table.getClass().getSimpleName())
    if kind == "DeltaTableV2":
        entry = table.catalogTable()
        known = entry.get() if entry.isDefined() else None
        java = jvm.scala.jdk.javaapi.CollectionConverters
        maps = (known.storage().properties(), known.properties()) if known else ()
        of_catalog = frozenset(key for one in maps for key in _keys(java.asJava(one)))
        return CatalogEntry(
            catalog,
            str(known.tableType().name()) if known else "",
            "delta",
            str(table.path().toString()),
            of_catalog,
        )
    properties = table.properties()
    place, keys = properties.get("location"), frozenset(_keys(properties))
    if kind == "V1Table":
        known = table.v1Table()
        provider = str(known.provider().get()) if known.provider().isDefined() else ""
        return CatalogEntry(catalog, str(known.tableType().name()), provider.lower(), place, keys)
    is_view = "view" in kind.lower()
    by_class = "" if is_view else "delta" if "delta" in kind.lower() else kind
    return CatalogEntry(
        catalog,
        "VIEW" if is_view else "",
        str(properties.get("provider") or by_class).lower(),
        place,
        keys,
    )


def _keys(properties: Any) -> list[str]:
    """Return the keys of a Java map only: values may be secrets, and py4j logs them at DEBUG."""
    return [str(key) for key in properties.keySet()]


def _refusal(error: BaseException, name: str, session: SparkSession) -> EtlError:
    if condition_of(error) == "CATALOG_NOT_FOUND" or _NO_PLUGIN.search(str(error)):
        catalog = meant_by(name, _settings(session))
        action = f"Check table.name, and spark.sql.catalog.{catalog} under spark: the class of the catalog, and its settings beside it"
        return SettingsError(
            f"Spark knows no catalog {catalog}, or not its class", key=_KEY, action=action
        )
    return cannot_be("be asked for", name, _causes(error), _settings(session))


def _causes(error: BaseException) -> list[str]:
    """Return the Java exceptions behind it, outermost first, as class and text."""
    java: Any = getattr(error, "_origin", None) or getattr(
        error, "java_exception", None
    )  # pyspark's errors, and py4j's
    found: list[str] = []
    while java is not None and len(found) < _CAUSES_MAX:
        found.append(str(java.toString()))
        java = java.getCause()
    return found or [f"{type(error).__name__}: {error}"]


def _settings(session: SparkSession) -> dict[str, str]:
    """Those of the session, and where Hadoop's files have a metastore."""
    hadoop: Any = session._jsc.hadoopConfiguration()  # no public way to it
    uris = hadoop.get("hive.metastore.uris")
    return {
        **({"hive.metastore.uris": str(uris)} if uris else {}),
        **dict(session.sparkContext.getConf().getAll()),
    }


_DEFAULTS = "core-default.xml"
"""Hadoop's own, in its jar."""
_log = logging.getLogger(__name__)
_KEYS = {
    "access.key": "table.store.access_key",
    "secret.key": "table.store.secret_key",
    "account.key": "table.store.account_key",
}


def enter_store(session: SparkSession, path: str) -> None:
    """Set the store's access in the session's Hadoop; nothing for a local directory or without
    settings. Raises SettingsError for a missing secret, for Hadoop settings by which commits could
    replace each other, and if the session lacks our log store.
    """
    kind = kind_of(path)
    if kind is None:
        return
    jvm: Any = session._jvm  # no public way to it
    hadoop: Any = session._jsc.hadoopConfiguration()
    if kind is StoreKind.S3:
        reject_unsafe_s3a_settings(path, {key: hadoop.get(key) for key in keys_that_matter(path)})
        _reject_without_log_store(session, jvm, path)
    for key, ours in hadoop_defaults(path).items():
        if list(hadoop.getPropertySources(key) or [_DEFAULTS])[-1:] == [_DEFAULTS]:
            hadoop.set(key, ours)
    options = hadoop_options(path, store_of(path))
    _redact(session, [key for key, value in options.items() if isinstance(value, SecretRef)])
    for key, value in options.items():
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
    """Redact Hadoop's settings before secrets are set: Spark writes them into its event log and
    pages whenever files are added. The keys are read from the context each time, so it also works
    for an existing session.
    """
    jsc: Any = session._jsc  # no public way to it
    conf = jsc.sc().conf()
    widened = redacting(keys, conf.get(REDACTED) if conf.contains(REDACTED) else None)
    if widened is not None:
        conf.set(REDACTED, widened)


def _reject_without_log_store(session: SparkSession, jvm: Any, path: str) -> None:
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
        action = "Run spark-submit with --jars etl/io/spark/log_store/log_store.jar, of the package or out of its zip, and with hadoop-aws"
        raise SettingsError(
            "The session lacks the class that keeps writers of the table's log apart",
            key=f"spark.{LOG_STORE}",
            path=path,
            action=action,
        ) from error


def _key_of(key: str) -> str:
    return next(name for part, name in _KEYS.items() if part in key)
