"""Which entry has a table in Spark's catalogs, and how does a session access the table's store?

Catalogs are read through the session's own objects, without reading a file of the table. They are
configured by `spark.sql.catalog.NAME`; `spark_catalog` is a Hive metastore if
spark.sql.catalogImplementation is hive.

Store credentials are set in Hadoop's configuration after the session has started: never on a
command line, in Spark's settings or in its event log.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etl.decide.table_rules import (
    catalog_error,
    catalog_of_name,
    innermost,
    known_cause,
    not_created_error,
    statement,
)
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
    """Return the catalog's entry of CATALOG.SCHEMA.TABLE or SCHEMA.TABLE; None for an unknown
    table.

    Raises SettingsError for a catalog that Spark does not know, TableUnreachable if the catalog
    does not answer.
    """
    jvm: Any = session._jvm  # there is no public access to it
    try:
        catalog, namespace, table = _in_catalog(session, name)
        identifier = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(namespace, table)
        return _entry(jvm, str(catalog.name()), catalog.loadTable(identifier))
    except Exception as error:  # errors of py4j and pyspark have no common class
        if condition_of(error) in _NOT_THERE:
            return None
        raise _refusal(error, name, session) from error


def place_to_be(session: SparkSession, name: str) -> str | None:
    """Return the path at which the catalog would create this table, in Hadoop's form; None if the
    catalog has no location, or lacks the schema.
    """
    jvm: Any = session._jvm  # there is no public access to it
    try:
        catalog, namespace, table = _in_catalog(session, name)
        if str(catalog.name()) == _OF_SESSION:
            # This catalog may change a name to lower case.
            found = jvm.org.apache.spark.sql.catalyst.TableIdentifier(
                table, jvm.scala.Option.apply(namespace[0])
            )
            return str(
                session._jsparkSession.sessionState().catalog().defaultTablePath(found).toString()
            )
        place = catalog.loadNamespaceMetadata(namespace).get("location")
    except Exception:  # any error of py4j and pyspark: `make_table` reports it
        return None
    if not place:
        return None
    return f"{str(place).rstrip('/')}/{table}"


def _in_catalog(session: SparkSession, name: str) -> tuple[Any, Any, str]:
    """Return the catalog of a name, its schema as Java's array of names, and the table's own name.

    Raises the errors of py4j and pyspark.
    """
    *above, schema, table = name.split(".")
    jvm: Any = session._jvm  # there is no public access to it
    manager: Any = session._jsparkSession.sessionState().catalogManager()
    namespace = session.sparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]
    namespace[0] = schema
    if above:
        return manager.catalog(above[0]), namespace, table
    return manager.currentCatalog(), namespace, table


def kind_of_catalog(session: SparkSession, name: str) -> tuple[str, str, str]:
    """Return the catalog of a name, and two settings that define the session's own catalog.

    See `reject_in_memory_catalog`.
    """
    *above, _, _ = name.split(".")
    if above:
        catalog = above[0]
    else:
        catalog = session.catalog.currentCatalog()
    implementation = session.conf.get("spark.sql.catalogImplementation", "in-memory")
    of_session = session.conf.get("spark.sql.catalog.spark_catalog", "")
    return catalog, implementation or "", of_session or ""


def make_table(rows: DataFrame, name: str, partition_by: tuple[str, ...]) -> None:
    """Create a Delta table with the columns of `rows`, which is empty, by the catalog, at the
    catalog's location. An existing table is not changed.

    Raises SettingsError if the catalog does not create it, TableUnreachable if a retry may succeed.
    """
    try:
        quoted = ".".join(f"`{part}`" for part in name.split("."))
        writing = rows.writeTo(quoted).using("delta")
        if partition_by:
            writing = writing.partitionedBy(*(rows[column] for column in partition_by))
        writing.create()
    except Exception as error:  # errors of pyspark have no common class
        condition = condition_of(error)
        if condition == "TABLE_OR_VIEW_ALREADY_EXISTS":
            return
        columns = [(field.name, field.dataType.simpleString()) for field in rows.schema.fields]
        creating = statement(name, columns, partition_by)
        causes = _causes(error)
        if condition is None and known_cause(causes):
            raise catalog_error(
                "make", name, causes, _settings(rows.sparkSession), instead=creating
            ) from error
        raise not_created_error(
            name, condition, condition or innermost(causes), str(error), creating
        ) from error


def condition_of(error: BaseException) -> str | None:
    """Return Spark's name of an error, for example TABLE_OR_VIEW_NOT_FOUND; None without one."""
    found = _CONDITION.search(str(error))
    return found[1] if found else None


def _entry(jvm: Any, catalog: str, table: Any) -> CatalogEntry:
    """Return the entry of the catalog itself.

    Other properties of Delta's class are read from the table's log, which may be anywhere.
    """
    kind = str(table.getClass().getSimpleName())
    if kind == "DeltaTableV2":
        table_type = ""
        property_keys: list[str] = []
        entry = table.catalogTable()
        if entry.isDefined():
            known = entry.get()
            table_type = str(known.tableType().name())
            to_java = jvm.scala.jdk.javaapi.CollectionConverters
            property_keys += _keys(to_java.asJava(known.storage().properties()))
            property_keys += _keys(to_java.asJava(known.properties()))
        path = str(table.path().toString())
        return CatalogEntry(catalog, table_type, "delta", path, frozenset(property_keys))
    properties = table.properties()
    place = properties.get("location")
    keys = frozenset(_keys(properties))
    if kind == "V1Table":
        known = table.v1Table()
        provider = ""
        if known.provider().isDefined():
            provider = str(known.provider().get())
        return CatalogEntry(catalog, str(known.tableType().name()), provider.lower(), place, keys)
    table_type = ""
    by_class = kind
    if "view" in kind.lower():
        table_type = "VIEW"
        by_class = ""
    elif "delta" in kind.lower():
        by_class = "delta"
    provider = str(properties.get("provider") or by_class).lower()
    return CatalogEntry(catalog, table_type, provider, place, keys)


def _keys(properties: Any) -> list[str]:
    """Return the keys of a Java map only: values may be secrets, and py4j logs them at DEBUG."""
    return [str(key) for key in properties.keySet()]


def _refusal(error: BaseException, name: str, session: SparkSession) -> EtlError:
    if condition_of(error) == "CATALOG_NOT_FOUND" or _NO_PLUGIN.search(str(error)):
        catalog = catalog_of_name(name, _settings(session))
        return SettingsError(
            f"Spark knows no catalog {catalog}, or not its class",
            key=_KEY,
            action=f"Check table.name, and spark.sql.catalog.{catalog} under spark: the class of "
            f"the "
            "catalog and its settings",
        )
    return catalog_error("be asked for", name, _causes(error), _settings(session))


def _causes(error: BaseException) -> list[str]:
    """Return the Java exceptions that caused it, outermost first, as class and text."""
    # pyspark's errors have the first attribute, py4j's the second.
    java: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    found: list[str] = []
    while java is not None and len(found) < _CAUSES_MAX:
        found.append(str(java.toString()))
        java = java.getCause()
    return found or [f"{type(error).__name__}: {error}"]


def _settings(session: SparkSession) -> dict[str, str]:
    """Return the settings of the session, and the metastore of Hadoop's files."""
    hadoop: Any = session._jsc.hadoopConfiguration()  # there is no public access to it
    uris = hadoop.get("hive.metastore.uris")
    settings = {}
    if uris:
        settings["hive.metastore.uris"] = str(uris)
    settings.update(session.sparkContext.getConf().getAll())
    return settings


_DEFAULTS = "core-default.xml"
"""Name of Hadoop's own defaults, in its jar."""
_log = logging.getLogger(__name__)
_KEYS = {
    "access.key": "table.store.access_key",
    "secret.key": "table.store.secret_key",
    "account.key": "table.store.account_key",
}


def enter_store(session: SparkSession, path: str) -> None:
    """Set the access to the store in the session's Hadoop configuration.

    Does nothing for a local directory or without settings. Raises SettingsError for a missing
    secret, for Hadoop settings with which commits could replace each other, and if the session
    lacks our log store.
    """
    kind = kind_of(path)
    if kind is None:
        return
    jvm: Any = session._jvm  # there is no public access to it
    hadoop: Any = session._jsc.hadoopConfiguration()
    if kind is StoreKind.S3:
        s3a_settings = {key: hadoop.get(key) for key in keys_that_matter(path)}
        reject_unsafe_s3a_settings(path, s3a_settings)
        _reject_without_log_store(session, jvm, path)
    for key, ours in hadoop_defaults(path).items():
        if list(hadoop.getPropertySources(key) or [_DEFAULTS])[-1:] == [_DEFAULTS]:
            hadoop.set(key, ours)
    options = hadoop_options(path, store_of(path))
    secret_keys = []
    for key, value in options.items():
        if isinstance(value, SecretRef):
            secret_keys.append(key)
    _redact(session, secret_keys)
    for key, value in options.items():
        if isinstance(value, SecretRef):
            with _without_py4j_log():
                hadoop.set(key, resolve_secret(value, _key_of(key)))
        else:
            hadoop.set(key, value)


@contextlib.contextmanager
def _without_py4j_log() -> Iterator[None]:
    """Context manager: disable py4j's log, which writes the arguments of each call at DEBUG."""
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
    pages whenever files are added.

    Spark reads the keys from the context each time, so it also works for an existing session.
    """
    jsc: Any = session._jsc  # there is no public access to it
    conf = jsc.sc().conf()
    redacted = None
    if conf.contains(REDACTED):
        redacted = conf.get(REDACTED)
    widened = redacting(keys, redacted)
    if widened is not None:
        conf.set(REDACTED, widened)


def _reject_without_log_store(session: SparkSession, jvm: Any, path: str) -> None:
    conf = session.sparkContext.getConf()
    chosen = conf.get(f"{LOG_STORE}.s3a.impl") or conf.get(f"{LOG_STORE}.class")
    if chosen != OURS:
        _log.warning(
            "the session commits on S3 by %s: allow only one driver and one kind of writer at a "
            "time, else commits to %s may replace one another",
            chosen or "Delta's default",
            path,
        )
        return
    class_loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(OURS, True, class_loader)
    except Exception as error:  # py4j's error for ClassNotFoundException
        raise SettingsError(
            "The session lacks the log store class that separates writers of the table's log",
            key=f"spark.{LOG_STORE}",
            path=path,
            action="Run spark-submit with hadoop-aws and with --jars "
            "etl/io/spark/log_store/log_store.jar, from the package or from its zip",
        ) from error


def _key_of(key: str) -> str:
    return next(name for part, name in _KEYS.items() if part in key)
