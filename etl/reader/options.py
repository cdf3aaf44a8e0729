"""Which options does the data source have?

The options of the data source, text to values. No I/O.

It owns what each option may hold; their names are in `option_names`, how logs are written in them
in `option_logs`. What they come to on the logs that there are is decided in `ranges`; `alone` asks
the brokers and packs the ranges into tasks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from etl.errors import SettingsError
from etl.ledger.topic_filters import NotTranslated, java_pattern
from etl.model.columns import raw_columns, types_of
from etl.model.partitions import BrokerFamily, Isolation
from etl.reader.option_logs import (
    parse_logs,
    parse_number,
    parse_offsets,
    parse_ranges,
    parse_times,
)
from etl.reader.option_names import PHYSICAL_REFUSED, SIZES, SPELLED, under_our_names
from etl.reader.option_ways_in import security_said, zookeeper_access_said
from etl.reader.reading import Bounds, Chosen, FirstAt, LogEnd, Reading
from etl.settings import choices
from etl.settings.choices import split_address, split_connect

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_MOST: Mapping[str, int] = {
    "fetch_max_bytes": choices.FETCH_MAX_BYTES_MOST,
    "fetch_limit_bytes": choices.FETCH_LIMIT_BYTES_MOST,
    "max_record_bytes": choices.MAX_RECORD_BYTES_MOST,
}
_MOST_OF_ANYTHING = 2**62
_LONGEST_TIMEOUT_S = 86_400.0
_AS_SPARK_SAYS = {"timestamp_ltz": "timestamp"}
_COLLATION = re.compile(r" collate \w+")
"""Of text, where the session has one; what is read is the same."""
_WHAT = ("topics", "subscribepattern", "assign", "ranges")
"""Exactly one of these says what to read."""


def parse_options(given: Mapping[str, str]) -> Reading:
    """The options as values. Raises SettingsError naming the option."""
    options = under_our_names(given)
    _refuse_other_than_one(options)
    physical = (
        _one_of(options, "dialect", tuple(member.value for member in BrokerFamily))
        == BrokerFamily.JAFKA.value
    )
    if physical:
        _refuse_unfit(options)
    sizes = {name: _positive(options, name, default, "bytes") for name, default in SIZES.items()}
    starting = _bounds(options, "starting", LogEnd.EARLIEST, physical)
    ending = _bounds(options, "ending", LogEnd.LATEST, physical)
    bootstrap, zookeeper = _where(options)
    most = (
        _positive(options, "maxrecordsperpartition", 0, "records")
        if "maxrecordsperpartition" in options
        else None
    )
    return Reading(
        bootstrap,
        _isolation(options, physical),
        _columns(options, physical),
        **sizes,
        timeout_s=_seconds(options, "timeout_s"),
        zookeeper=zookeeper,
        physical=physical,
        chosen=_chosen(options, physical),
        ranges=parse_ranges(options["ranges"], physical=physical) if "ranges" in options else None,
        starting=_refused(starting, LogEnd.LATEST),
        ending=_refused(ending, LogEnd.EARLIEST),
        late_start_is_latest=_one_of(
            options, "startingoffsetsbytimestampstrategy", ("error", "latest")
        )
        == "latest",
        compacted=frozenset(names_in(options.get("compacted_topics", ""))),
        fails_on_data_loss=_one_of(options, "failondataloss", ("true", "false")) == "true",
        least_tasks=_positive(options, "minpartitions", 1, "Spark partitions"),
        most_offsets=most,
        generation=_generation(options),
        security=security_said(options),
        access=zookeeper_access_said(options),
        transform=None,
    )


def _generation(options: Mapping[str, str]) -> str | None:
    if "broker_version" not in options:
        return None
    from etl.kafka.families import of_broker_version

    return of_broker_version(options["broker_version"], option="broker_version")


def _refuse_unfit(options: Mapping[str, str]) -> None:
    """Raises SettingsError for an option that has no meaning where offsets are byte positions."""
    for name in options:
        if name in PHYSICAL_REFUSED:
            what = f"{SPELLED[name]} cannot be used with dialect {BrokerFamily.JAFKA.value}: {PHYSICAL_REFUSED[name]}"
            raise SettingsError(what, option=SPELLED[name], check="leave the option out")


def _refuse_other_than_one(options: Mapping[str, str]) -> None:
    if sum(name in options for name in _WHAT) != 1:
        what = "exactly one of the options topics (or subscribe), subscribePattern, assign and ranges must say what to read"
        raise SettingsError(what, check="the options")
    bounded = next(
        (
            name
            for name in options
            if name.startswith(("startingoffsets", "startingtime", "endingo", "endingt"))
        ),
        None,
    )
    if "ranges" in options and bounded:
        what = f"ranges says where to start and to stop, and so does {SPELLED[bounded]}"
        raise SettingsError(what, option=SPELLED[bounded], check="leave one of the two out")


def _chosen(options: Mapping[str, str], physical: bool) -> Chosen:
    if "subscribepattern" in options:
        return Chosen(pattern=_pattern(options["subscribepattern"]))
    if "assign" in options:
        return Chosen(logs=parse_logs(options["assign"], physical=physical))
    topics = tuple(names_in(options.get("topics", "")))
    if "topics" in options and not topics:
        raise SettingsError(
            "no topic is named",
            option="topics",
            check="topics (or subscribe): names, separated by commas",
        )
    return Chosen(topics=topics)


def _pattern(text: str) -> str:
    """Raises SettingsError for a pattern that is none of Java's, or that this source does not
    translate.
    """
    pattern = text.strip()
    if not pattern:
        raise SettingsError(
            "an empty expression is found in the name of every topic",
            option="subscribePattern",
            check="write .* for all",
        )
    try:
        java_pattern(pattern)
    except NotTranslated as error:
        what = f"the regular expression {pattern!r} is not supported: {error}"
        raise SettingsError(
            what,
            option="subscribePattern",
            check="a simpler expression, or topics by name (topics)",
        ) from error
    return pattern


def _bounds(options: Mapping[str, str], side: str, default: LogEnd, physical: bool) -> Bounds:
    """The bounds of one side; of several options Spark follows the first of these."""
    if f"{side}timestamp" in options:
        name = f"{side}Timestamp"
        return Bounds(FirstAt(parse_number(options[name.lower()], name)), option=name)
    if f"{side}offsetsbytimestamp" in options:
        name = f"{side}OffsetsByTimestamp"
        return Bounds(by_log=parse_times(options[name.lower()], name), option=name)
    name = f"{side}Offsets"
    said = options.get(name.lower(), default.value).strip()
    if said.lower() in tuple(LogEnd):
        return Bounds(LogEnd(said.lower()), option=name)
    return Bounds(by_log=parse_offsets(said, name, physical=physical), option=name)


def _refused(bounds: Bounds, end: LogEnd) -> Bounds:
    """A batch cannot start at the end, or stop at the start. Raises SettingsError, as Spark's
    source does.
    """
    if end in (bounds.everywhere, *bounds.by_log.values()):
        raise SettingsError(
            f"{bounds.option} cannot be {end.value}: nothing would be read",
            option=bounds.option,
            check="the option",
        )
    return bounds


def _columns(options: Mapping[str, str], physical: bool) -> tuple[str, ...]:
    columns = raw_columns(
        names_in(options["columns"]) if "columns" in options else None, physical=physical
    )
    if not columns:
        raise SettingsError(
            "no column is chosen",
            option="columns",
            check="name at least one, or leave the option out",
        )
    without_headers = (
        "includeheaders" in options
        and _one_of(options, "includeheaders", ("true", "false")) == "false"
    )
    return tuple(name for name in columns if name != "headers" or not without_headers)


def columns_of_schema(schema: StructType, reading: Reading) -> tuple[str, ...]:
    """The columns that a query's author named by `.schema(...)`, in its order; by default it is the
    one of the chosen columns.

    Raises SettingsError for a column that is not among the chosen ones, or is of another kind.
    """
    types = types_of(physical=reading.physical)
    for field in schema.fields:
        if field.name not in reading.columns:
            check = f"the schema; the columns that can be read are {', '.join(reading.columns)}"
            raise SettingsError(
                f"there is no column {field.name!r} to read", column=field.name, check=check
            )
        kind = _AS_SPARK_SAYS.get(types[field.name], types[field.name])
        if (_COLLATION.sub("", field.dataType.simpleString()), field.nullable) != (kind, True):
            said = f"{field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
            what = f"the schema says that {field.name} is {said}, it is {types[field.name]}"
            raise SettingsError(
                what,
                column=field.name,
                check="the schema: a column is read as it is, and the query may cast it",
            )
    return tuple(field.name for field in schema.fields)


def names_in(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _where(options: Mapping[str, str]) -> tuple[tuple[tuple[str, int], ...], str | None]:
    """Brokers to ask first, or the ZooKeeper that they are registered in. Raises SettingsError."""
    if "zookeeper" not in options:
        return _bootstrap(options.get("bootstrap", "")), None
    if "bootstrap" in options:
        raise SettingsError(
            "bootstrap and zookeeper both say where the brokers are",
            option="zookeeper",
            check="leave one of the two out",
        )
    connect = options["zookeeper"].strip()
    try:
        split_connect(connect)
    except ValueError as error:
        what = f"the connection string is wrong: {error}"
        raise SettingsError(
            what, option="zookeeper", check="the form is host:port,host:port/chroot"
        ) from error
    return (), connect


def _bootstrap(text: str) -> tuple[tuple[str, int], ...]:
    form = "the form is host:port,host:port"
    try:
        addresses = [split_address(address) for address in names_in(text)]
    except ValueError as error:
        raise SettingsError(
            f"a broker's address is wrong: {error}", option="bootstrap", check=form
        ) from error
    if not addresses:
        check = f"give one or more brokers; {form}; or zookeeper, where they are registered"
        raise SettingsError("no broker is named", option="bootstrap", check=check)
    return tuple(addresses)


def _isolation(options: Mapping[str, str], physical: bool) -> Isolation:
    if physical:
        return Isolation.READ_UNCOMMITTED
    return Isolation(_one_of(options, "isolation", tuple(member.value for member in Isolation)))


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """What is said, else the first of what is allowed."""
    said = options.get(name, allowed[0])
    if said.lower() not in allowed:
        raise SettingsError(
            f"{said!r} is no value of {SPELLED[name]}",
            option=SPELLED[name],
            check=f"it is {' or '.join(allowed)}",
        )
    return said.lower()


def _positive(options: Mapping[str, str], name: str, default: int, what: str) -> int:
    said, most = options.get(name, str(default)), _MOST.get(name, _MOST_OF_ANYTHING)
    if not (said.isascii() and said.isdecimal()) or len(said) > 18 or not 0 < int(said) <= most:
        raise SettingsError(
            f"{said!r} is no number of {what}",
            option=SPELLED[name],
            check=f"a whole number from 1 to {most}",
        )
    return int(said)


def _seconds(options: Mapping[str, str], name: str) -> float:
    said = options.get(name, str(choices.TIMEOUT_S))
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:  # neither is what is no number
        check = f"a number above 0, {_LONGEST_TIMEOUT_S:.0f} at most"
        raise SettingsError(f"{said!r} is no number of seconds", option=name, check=check)
    return seconds
