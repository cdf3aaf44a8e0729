"""Which Spark setting is invalid, and why did a session not start?

Lives here: what can be seen in the settings alone, and the meaning of what the JVM printed or
raised. Not here: the start (etl/io/spark/session.py), folders (etl/commands/doctor_machine.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from etl.errors import EtlError, ProcessLost, SettingsError, Unreachable

CATALOG = "spark.sql.catalog.spark_catalog"
MASTER = "spark.master"
DRIVER_MEMORY = "spark.driver.memory"
LEAST_DRIVER_BYTES = 471_859_200
"""Spark rejects a smaller heap (`UnifiedMemoryManager`: 1.5 times 300 MiB)."""

_SIZES = (
    "spark.driver.maxResultSize",
    "spark.driver.memoryOverhead",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.kryoserializer.buffer.max",
    "spark.memory.offHeap.size",
)
_SIZE = re.compile(r"\s*\d+([kmgtp]?b?)\s*", re.IGNORECASE)
"""As `JavaUtils.byteStringAs` reads it."""
_HEAP = re.compile(r"(\d+)([kmgt]?)", re.IGNORECASE)
"""The JVM's own form of a size, as Spark passes it on."""
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MASTER = re.compile(
    r"local(\[(\*|\d+)(\s*,\s*\d+)?\])?"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|\w+://.+"
)
_WRITE_SIZE = "Write a whole number and k, m or g without a blank, for example 4g"


def invalid_settings(settings: Mapping[str, str]) -> Iterator[SettingsError]:
    """Return the errors of Spark settings that would stop a JVM or a session of its own at start."""
    memory = settings.get(DRIVER_MEMORY, "")
    found = _HEAP.fullmatch(memory)
    if memory and found is None:
        yield SettingsError(
            f"The JVM cannot have {memory!r} of memory",
            key=DRIVER_MEMORY,
            action=_WRITE_SIZE,
        )
    elif found is not None and int(found[1]) * _UNITS[found[2].lower()] < LEAST_DRIVER_BYTES:
        yield SettingsError(
            f"Spark does not start with {memory} of memory",
            key=DRIVER_MEMORY,
            action="Set at least 512m; the default is 1g",
        )
    for key in _SIZES:
        size = settings.get(key, "")
        if size and not _SIZE.fullmatch(size):
            yield SettingsError(
                f"Spark cannot read the size {size!r}",
                key=key,
                action=_WRITE_SIZE,
            )
    master = settings.get(MASTER, "")
    if master and not _MASTER.fullmatch(master):
        yield SettingsError(
            f"Spark knows no master {master!r}",
            key=MASTER,
            action="Set local[4] or local[*], spark://HOST:PORT, yarn, or k8s://URL",
        )


_PRINTED = re.compile(
    r"^(?:Error occurred during initialization of VM\n|Exception in thread .*?: |Error: |ERROR: |"
    r"Error opening |Invalid |Too small |Unrecognized |Unable to |Could not |Improperly |"
    r"Conflicting |Failed to find |JAVA_HOME is not set|[\w/.-]+: (?:line|error)|"
    r"/.*: No such file).*$",
    re.MULTILINE,
)
"""A line in which a JVM, or its start script, says why it ends."""
_INITIALIZATION = "Error occurred during initialization of VM\n"
"""The JVM's reason is in the next line."""
_EXCEPTION = re.compile(r"^(?:: |Caused by: )?((?:[a-z]\w*\.)+[A-Z][\w$]*(?:: [^\n]*)?)$", re.M)
"""The line of a Java stack trace with an exception; the last one is the cause of the others."""
_GATEWAY = "JAVA_GATEWAY_EXITED"
_LAUNCHER_LOST = "CMD: bad array subscript"
"""Of the script spark-class, if the first JVM ended before it printed the second one's command."""
_UNNAMED_USER = re.compile(r"invalid null input: name|basedir must be absolute: \?/")
"""Of the JVM's UnixLoginModule, and of Ivy below the JVM's `user.home`, which is `?`."""
_UNRESPONSIVE = re.compile(
    r"All masters are unresponsive|Failed to connect to master|Connection refused|"
    r"NoRouteToHostException|UnknownHostException|ConnectException|ConnectTimeoutException"
)
_HEAP_REJECTED = re.compile(
    r"(?:maximum|initial) heap size|System memory \d+ must be at least|reserve enough space for "
)
_OTHER_CATALOG = "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG"
_IN_THREAD = re.compile(r'Exception in thread "[^"]*" ')
_LEAST_VALUE = 5
"""Shorter values of settings (`true`) are in any text."""


def error_of_start(
    raised: str, printed: str, settings: Mapping[str, str], key: str | None = None
) -> EtlError:
    """Return the error for a JVM or session that did not start with these settings.

    `raised`: the exception with its Java causes. `printed`: the JVM's output since its start.
    `key`: the setting that was tried; None: it is found by the text.
    """
    both = f"{printed}\n{raised}"
    if _UNNAMED_USER.search(both):
        return unnamed_user_error()
    cause = cause_in(raised) or cause_in(printed)
    if _GATEWAY in raised and (cause is None or _LAUNCHER_LOST in cause):
        return ProcessLost(
            "Spark's JVM ended at its start and printed no reason",
            action="Check the memory of this machine: what killed the process?",
        )
    master = settings.get(MASTER, "local")
    unresponsive = _UNRESPONSIVE.search(both)
    if unresponsive and not master.startswith("local"):
        return Unreachable(
            f"Spark's master does not answer: {unresponsive[0]}",
            key=MASTER,
            master=master,
            action="Check that the master runs at this address, and the network to it",
        )
    reason = cause or (raised.strip().splitlines() or ["no reason given"])[0]
    message = f"Spark does not start: {reason.rstrip('.')}"
    if _HEAP_REJECTED.search(both):
        return SettingsError(
            message, key=DRIVER_MEMORY, action="Set a size that this machine has, for example 2g"
        )
    key = key or _key_in(cause or "", settings) or _key_in(raised, settings)
    action = "Check the section spark of the conf, spark-defaults.conf and Spark's log"
    if key is not None:
        action = f"Check {key}"
    return SettingsError(message, key=key, action=action)


def cause_in(text: str) -> str | None:
    """Return Java's own line with the cause; None if there is none."""
    exceptions = _EXCEPTION.findall(text)
    if exceptions:
        return str(exceptions[-1]).strip()
    printed = _PRINTED.search(text)
    if printed:
        return _IN_THREAD.sub("", printed[0].removeprefix(_INITIALIZATION)).strip()
    return None


def _key_in(text: str, settings: Mapping[str, str]) -> str | None:
    """Return the setting that the text names; if it names none, the one whose value it has."""
    if "Master must either" in text or "Could not parse Master URL" in text:
        return MASTER
    for key in sorted(settings, key=len, reverse=True):
        if key in text:
            return key
    for key, value in settings.items():
        if len(value) >= _LEAST_VALUE and value.removeprefix("file:") in text:
            return key
    return None


def unnamed_user_error() -> SettingsError:
    """Return the error for a user id without a name, as in a container under a random id."""
    return SettingsError(
        "This process's user id has no name, and Spark's JVM requires one",
        file="/etc/passwd",
        action="Add a line for the id to /etc/passwd, as the entry point of Spark's own images"
        " does, or run under an id that has one",
    )


def other_catalog_error(text: str) -> SettingsError | None:
    """Return the error for a session whose catalog cannot hold Delta tables; else None."""
    if _OTHER_CATALOG not in text:
        return None
    return SettingsError(
        "Spark's session catalog is not Delta's, so no Delta table can be read or written",
        key=CATALOG,
        action=f"Leave {CATALOG} and spark.sql.extensions out of the conf, or add Delta's classes",
    )
