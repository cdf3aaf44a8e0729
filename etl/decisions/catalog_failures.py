"""Why a catalog cannot be asked, or makes no table: the first cause that says something, and the
setting that it hangs on.

Pure functions of values. What a catalog's server or the driver of its database says is told in our
words alone: theirs may quote how it was entered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from etl.errors import EtlError, SettingsError, TableUnreachable

_URIS = ("spark.hadoop.hive.metastore.uris", "spark.hive.metastore.uris", "hive.metastore.uris")
"""Of a Hive metastore; the last as Hadoop's own files say it."""
_DATABASE = "spark.hadoop.javax.jdo.option.ConnectionURL"
_JARS = "the jar with it: spark.jars.packages, spark.jars or spark.driver.extraClassPath under spark, or spark-submit --jars"
_LOGIN = "how the catalog is entered: the settings beside that key, the ticket, hive-site.xml"
_SERVER = "that the catalog's server answers there, and Spark's log beside the run's report; a later run asks again"
_WRAPPING = frozenset(
    (
        "AnalysisException",
        "ExecutionException",
        "HiveException",
        "InvocationTargetException",
        "MetaException",
        "Py4JJavaError",
        "RuntimeException",
        "SparkException",
        "UncheckedExecutionException",
        "UndeclaredThrowableException",
    )
)
"""Exceptions that only say that there is another one."""
_CLASS = re.compile(r"(?:[a-z_]\w*\.)+([A-Z]\w*(?:Exception|Error))\b")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why, and whether it stays so until somebody changes something."""

    says: str
    stays: bool
    check: str


_KNOWN: Sequence[tuple[str, str, bool, str]] = (
    (
        r"(?:ClassNotFoundException: (?:Class )?|NoClassDefFoundError: |\bClass (?=[\w.$]+ not found))([\w.$/]+)",
        "Spark does not find the class {}",
        True,
        _JARS,
    ),
    (
        r"No suitable driver|Unable to load (?:JDBC )?driver|datastore driver \(.*?\) was not found",
        "Spark has no JDBC driver for the metastore's database",
        True,
        _JARS,
    ),
    (
        r"GSS initiate failed|SaslException|SASL negotiation failure|Access denied|authentication failed"
        r"|(?i:\bunauthori[sz]ed\b|\bforbidden\b)",
        "the login was refused",
        True,
        _LOGIN,
    ),
    (
        r"AccessControlException|Permission denied",
        "permission was refused",
        True,
        "the rights of the user that the run goes by",
    ),
    (r"UnknownHostException", "there is no such host", False, _SERVER),
    (r"Connection refused", "connection refused", False, _SERVER),
    (
        r"SocketTimeoutException|ConnectTimeoutException|(?:Read|connect|Connection) timed out",
        "no answer in time",
        False,
        _SERVER,
    ),
    (
        r"NoRouteToHostException|Network is unreachable",
        "there is no way to the host",
        False,
        _SERVER,
    ),
    (r"Connection reset|Broken pipe|EOFException", "the connection broke", False, _SERVER),
    (
        r"XSDB6|Another instance of Derby",
        "another process has the metastore's Derby database",
        False,
        "who else uses it: one can at a time",
    ),
)


def known_cause(causes: Sequence[str]) -> Cause | None:
    """Of Java's exceptions, each with its class and what it says, the outermost first; None where
    none of them tells.
    """
    text = "\n".join(causes)
    for pattern, says, stays, check in _KNOWN:
        found = re.search(pattern, text)
        if found:
            return Cause(says.format(*found.groups()), stays, check)
    return None


def innermost(causes: Sequence[str]) -> str:
    """The class of the innermost one that is more than a wrapping."""
    classes = [found[1] for one in reversed(causes) if (found := _CLASS.match(one))]
    return next(
        (name for name in classes if name not in _WRAPPING),
        classes[0] if classes else "nobody says why",
    )


def cannot_be(
    doing: str,
    name: str,
    causes: Sequence[str],
    spark: Mapping[str, str],
    *,
    instead: str | None = None,
) -> EtlError:
    """The failure to do that ("be asked for", "make") with a name: exit 2 where only somebody mends
    it, else 7.

    `spark`: the session's settings, by which it is told where the catalog is. `instead`: what
    somebody with other means could say there.
    """
    cause = known_cause(causes) or Cause(innermost(causes), False, _SERVER)
    key, place = _named_by(name, spark)
    what = f"the catalog cannot {doing} {name}: {cause.says}{f', {place}' if place else ''}"
    kind = SettingsError if cause.stays else TableUnreachable
    return kind(
        what,
        key=key,
        check=f"{cause.check}; or by whoever can: {instead}"
        if instead and cause.stays
        else cause.check,
    )


def meant_by(name: str, spark: Mapping[str, str]) -> str:
    """The catalog of a name; of one with a schema alone the session's own, "" where that is
    Spark's.
    """
    return name.split(".")[0] if name.count(".") > 1 else spark.get("spark.sql.defaultCatalog", "")


def _named_by(name: str, spark: Mapping[str, str]) -> tuple[str, str | None]:
    """The key that says where the catalog of a name is, and where that is; of a database's URL,
    which may hold a password, nothing.
    """
    catalog = meant_by(name, spark)
    keys = (
        (f"spark.sql.catalog.{catalog}.uri", f"spark.sql.catalog.{catalog}")
        if catalog not in ("", "spark_catalog")
        else ()
    )
    key = next((key for key in (*keys, *_URIS, _DATABASE) if key in spark), None)
    if key is None:
        return "table.name", None
    told = [
        f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        for one in spark[key].split(",")
        if (url := urlsplit(one.strip())).netloc
    ]
    return key, ",".join(told) if told and key != _DATABASE else None
