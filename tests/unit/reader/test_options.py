"""Options of the data source, and the ranges that they come to."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from etl.errors import (
    BrokerUnreachable,
    DataLoss,
    EtlError,
    NotKafka,
    NotYetReadable,
    PermissionDenied,
    RanOutBeforeUntil,
    SettingsError,
    TopicMissing,
)
from etl.model.partitions import Isolation, PartitionOffsets, TopicPartition
from etl.model.plans import OffsetRange
from etl.model.security import (
    OPEN,
    LocalFile,
    Login,
    Mechanism,
    SecretRef,
    Security,
    SecurityProtocol,
    Tls,
)
from etl.reader.options import (
    OF_SPARK,
    OURS,
    PHYSICAL_REFUSED,
    SECURITY,
    WITHOUT_EFFECT,
    ZOOKEEPER_SECURITY,
    columns_of_schema,
    parse_options,
    parse_ranges,
    with_option_advice,
    with_pipeline_advice,
)
from etl.reader.query_ranges import (
    Bounds,
    FirstAt,
    LogEnd,
    TopicSelection,
    clip_to_partition,
    ranges_of,
    reject_missing_partitions,
)
from etl.settings.schema import key_names

CLICKS = [TopicPartition("clicks", p) for p in range(3)]
EXTENTS = {
    CLICKS[0]: PartitionOffsets(10, 40),
    CLICKS[1]: PartitionOffsets(0, 50),
    CLICKS[2]: PartitionOffsets(7, 7),
}
SERVERS, PATTERN = "kafka.bootstrap.servers", "subscribePattern"
STARTING, ENDING = "startingOffsets", "endingOffsets"
FROM_TIME, UNTIL_TIME = "startingTimestamp", "endingTimestamp"
LEAST = {SERVERS: "h:1", "subscribe": "clicks"}
LENIENT = {"failOnDataLoss": "false"}
OR_LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


def each(*offsets: int) -> str:
    return json.dumps({"clicks": {str(number): offset for number, offset in enumerate(offsets)}})


def ranges_json(*starts: int) -> str:
    """A range up to offset 5 from each of these."""
    return json.dumps([{"topic": "t", "partition": 0, "from": at, "until": 5} for at in starts])


def ranges(**options: str) -> list[tuple[int, int, int]]:
    """(partition, from, until) of these options; a time is at offset 20 of partition 0."""
    reading = parse_options({**LEAST, **options})
    found = {CLICKS[0]: 20, CLICKS[1]: None, CLICKS[2]: None}
    first, last = (
        {partition: found[partition] for partition in bounds.times(EXTENTS)}
        for bounds in (reading.starting, reading.ending)
    )
    return [
        (r.partition.partition, r.from_offset, r.until_offset)
        for r in ranges_of(reading, EXTENTS, first, last)
    ]


def test_ranges_are_written_as_json() -> None:
    text = '[{"topic": "clicks", "partition": 2, "from": 5, "until": 9}]'
    assert parse_ranges(text) == (OffsetRange(CLICKS[2], 5, 9),)


@pytest.mark.parametrize(
    "options, named",
    [
        ({"assign": '{"clicks": [0], "clicks": [1]}'}, "clicks"),
        ({"subscribe": "clicks", STARTING: '{"clicks": {"0": 5, "0": 9}}'}, "0"),
        ({"ranges": '[{"topic": "t", "partition": 0, "from": 5, "from": 1, "until": 9}]'}, "from"),
    ],
)
def test_a_repeated_name_is_ambiguous(options: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=f"'{named}' is named twice"):
        parse_options({SERVERS: "h:1", **options})


@pytest.mark.parametrize(
    "options, named",
    [
        ({"topicz": "t"}, "topicz"),
        ({"subscribe": None}, "subscribe"),
        ({"ranges": "[]"}, "subscribe"),
        ({"assign": "{}"}, "assign"),
        ({"subscribe": None, "ranges": "[]", STARTING: "earliest"}, "startingOffsets"),
        ({"Subscribe": "u"}, "is set twice"),
        ({SERVERS: None}, "kafka.bootstrap.servers"),
        ({SERVERS: "h"}, "'h'"),
        ({SERVERS: "h:99999"}, "'h:99999'"),
        ({SERVERS: "h" * 80 + ":1"}, "host name:"),
        ({"fetch_max_bytes": str(2**31)}, "fetch_max_bytes"),
        ({"max_batch_bytes": str(2**31)}, "max_batch_bytes"),
        ({"request_timeout_s": "1e300"}, "request_timeout_s"),
        ({"kafka.isolation.level": "dirty"}, "dirty"),
        ({"columns": "key,nothing"}, "nothing"),
        ({"columns": " , "}, "columns"),
        ({"fetch_max_bytes": "-1"}, "fetch_max_bytes"),
        ({"request_timeout_s": "soon"}, "request_timeout_s"),
        ({"request_timeout_s": "nan"}, "request_timeout_s"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"failOnDataLoss": "perhaps"}, "'perhaps' is no value of failOnDataLoss"),
        ({"subscribe": None, PATTERN: "("}, "regular expression"),
        ({"subscribe": None, PATTERN: "  "}, "every topic"),
        (
            {"subscribe": None, PATTERN: "or[c-e&&[^c]]ers"},
            "a class inside a class, or &&.*option subscribePattern",
        ),
        ({"subscribe": None, PATTERN: "a(b)\\1"}, "option subscribePattern"),
        ({"subscribe": None, PATTERN: "a{,2}"}, "option subscribePattern"),
        ({"subscribe": " , "}, "No topic is named"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "username is missing.*option sasl_\\*"),
        ({"subscribe": None, "assign": "[1]"}, "clicks"),
        ({"startingTimestamp": "abc"}, "in the form 1700000000000, milliseconds"),
        ({STARTING: "[1]"}, "'\\[1\\]' is JSON of another form.*form earliest, or {"),
        ({ENDING: "last"}, "'last' is not JSON.*form latest, or {"),
        ({STARTING: "latest"}, "startingOffsets cannot be latest"),
        ({STARTING: '{"t": {"0": -1}}'}, "startingOffsets cannot be latest"),
        ({ENDING: '{"t": {"0": -2}}'}, "endingOffsets cannot be earliest"),
        ({ENDING: '{"t": {"0": -3}}'}, "no offset"),
        ({STARTING: '{"t": {"0": -3}}'}, "no offset"),
        ({"subscribe": None, "ranges": ranges_json(-2)}, "no whole number"),
        ({"subscribe": None, "ranges": ranges_json(0, 0)}, "0 to 5 and 0 to 5 overlap"),
        ({ENDING: '{"t": 3}'}, '"clicks"'),
        ({FROM_TIME: "yesterday"}, "milliseconds since 1970"),
        (
            {"kafka.security.protocol": "SASL_SSL"},
            "sasl.mechanism is missing.*option kafka.security.protocol",
        ),
        (
            {"kafka.sasl.jaas.config": "password=x"},
            "kafka.sasl.jaas.config.*sasl_password, which is a reference",
        ),
        ({"kafka.ssl.truststore.location": "x"}, "tls_ca_file, in PEM"),
        ({"listener": "INSIDE"}, "give zookeeper in place of kafka.bootstrap.servers"),
        (
            {"kafka.security.protocol": "SSL", "tls_key_file": "k.pem"},
            "cert_file is missing \\(option tls_\\*\\)\\.",
        ),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str | None], named: str) -> None:
    """None takes an option away."""
    given = {name: value for name, value in {**LEAST, **options}.items() if value is not None}
    with pytest.raises(SettingsError, match=named):
        parse_options(given)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}x",
        '[{"topic": "t"}]',
        '[{"topic": "t", "partition": 0, "from": 9, "until": 5}]',
        "[1]",
        '[{"topic": "t", "partition": 2147483648, "from": 0, "until": 5}]',
        '[{"topic": "t", "partition": 0, "from": 0, "until": 9223372036854775808}]',
        '[{"topic": "t", "partition": 0, "from": 0.5, "until": 5}]',
    ],
)
def test_an_invalid_list_of_ranges_is_rejected_with_the_form(text: str) -> None:
    with pytest.raises(SettingsError, match='"from": 10'):
        parse_ranges(text)


def test_case_blanks_and_tuning_options_do_not_count() -> None:
    lower = {**LEAST, "kafka.isolation.level": "read_uncommitted"}
    mixed = {
        "KAFKA.bootstrap.servers": "h:1",
        "Subscribe": "clicks",
        "kafka.Isolation.Level": "READ_UNCOMMITTED",
        "kafka.security.protocol": "plaintext",
        **dict.fromkeys(WITHOUT_EFFECT, "1"),
    }
    assert parse_options(lower) == parse_options(mixed)
    properties = {f"option.{name}": value for name, value in LEAST.items()}
    assert parse_options({**LEAST, **properties, "owner": "me"}) == parse_options(LEAST)
    later = parse_options({**properties, "subscribe": "views", "provider": "offset_ranges"})
    assert later.selection == TopicSelection(topics=("views",))
    assert parse_options(lower).fetch.isolation is Isolation.READ_UNCOMMITTED
    pattern = {SERVERS: "h:1", PATTERN: " click.* "}
    assert parse_options(pattern).selection == TopicSelection(pattern="click.*")


@pytest.mark.parametrize(
    "options, read",
    [
        ({}, [(0, 10, 40), (1, 0, 50), (2, 7, 7)]),
        ({STARTING: "earliest", ENDING: "latest"}, [(0, 10, 40), (1, 0, 50), (2, 7, 7)]),
        ({STARTING: each(12, -2, 7)}, [(0, 12, 40), (1, 0, 50), (2, 7, 7)]),
        ({ENDING: each(12, 5, -1)}, [(0, 10, 12), (1, 0, 5), (2, 7, 7)]),
        ({UNTIL_TIME: "1700000000000"}, [(0, 10, 20), (1, 0, 50), (2, 7, 7)]),
        ({FROM_TIME: "1700000000000", **OR_LATEST}, [(0, 20, 40), (1, 50, 50), (2, 7, 7)]),
        ({FROM_TIME: "5", UNTIL_TIME: "5", **OR_LATEST}, [(0, 20, 20), (1, 50, 50), (2, 7, 7)]),
        ({"endingOffsetsByTimestamp": each(1, 2, 3)}, [(0, 10, 20), (1, 0, 50), (2, 7, 7)]),
        ({STARTING: each(3, 3, 3), **LENIENT}, [(0, 10, 40), (1, 3, 50), (2, 7, 7)]),
        ({STARTING: each(1000, 49, 8), **LENIENT}, [(0, 1000, 1000), (1, 49, 50), (2, 8, 8)]),
        ({STARTING: each(40, 50, 7)}, [(0, 40, 40), (1, 50, 50), (2, 7, 7)]),
        ({ENDING: each(3, 90, 3), **LENIENT}, [(0, 10, 10), (1, 0, 50), (2, 7, 7)]),
        ({ENDING: each(10, 0, 7)}, [(0, 10, 10), (1, 0, 0), (2, 7, 7)]),
    ],
)
def test_each_form_of_a_bound_is_read(
    options: dict[str, str], read: list[tuple[int, int, int]]
) -> None:
    assert ranges(**options) == read


def test_a_time_for_all_partitions_comes_before_times_and_offsets_for_each() -> None:
    each = {"startingOffsetsByTimestamp": "{}", STARTING: "earliest"}
    reading = parse_options({**LEAST, FROM_TIME: "9", **each})
    assert reading.starting == Bounds(FirstAt(9), option="startingTimestamp")
    assert reading.ending.everywhere is LogEnd.LATEST


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_record_during_the_lookup_of_a_time_is_not_read(side: str) -> None:
    partition = TopicPartition("clicks", 0)
    reading = parse_options({**LEAST, f"{side}Timestamp": "5"})
    found = {"starting": ({partition: 12}, {}), "ending": ({}, {partition: 12})}[side]
    [read] = ranges_of(reading, {partition: PartitionOffsets(0, 10)}, *found)
    assert (read.from_offset, read.until_offset) == ((10, 10) if side == "starting" else (0, 10))


@pytest.mark.parametrize(("bound", "raised"), [(12, NotYetReadable), (13, RanOutBeforeUntil)])
def test_a_bound_in_an_open_transaction_may_come(bound: int, raised: type[EtlError]) -> None:
    there = PartitionOffsets(0, 10, high_watermark=12)
    reading = parse_options({**LEAST, STARTING: json.dumps({"clicks": {"0": bound}})})
    with pytest.raises(raised, match=f"up to 10, offsets from {bound} on"):
        list(ranges_of(reading, {CLICKS[0]: there}, {}, {}))
    with pytest.raises(raised, match=f"up to 10, offsets up to {bound}"):
        clip_to_partition(OffsetRange(CLICKS[0], 5, bound), there, fails=True)
    assert clip_to_partition(OffsetRange(CLICKS[0], 30, 30), there, fails=True).size == 0


@pytest.mark.parametrize(
    "options, raised, text",
    [
        ({STARTING: '{"clicks": {"0": 12}}'}, SettingsError, "not named.*partition 1"),
        ({STARTING: '{"clicks": {"0": 12, "1": 1, "2": 7, "9": 1}}'}, TopicMissing, "partition 9"),
        ({ENDING: each(41, 1, 7)}, RanOutBeforeUntil, "up to 40"),
        ({STARTING: each(3, 1, 7)}, DataLoss, "starts at 10"),
        (
            {STARTING: each(20, 1, 7), ENDING: each(12, 1, 7)},
            SettingsError,
            "start at 20 and stop at 12",
        ),
        (
            {FROM_TIME: "1700000000000"},
            SettingsError,
            "No record is as late as the starting time.*partition 1",
        ),
        (
            {STARTING: each(41, 1, 7)},
            RanOutBeforeUntil,
            "up to 40, offsets from 41 on.*partition 0",
        ),
        ({ENDING: each(9, 1, 7)}, DataLoss, "starts at 10, offsets up to 9.*partition 0"),
        ({STARTING: each(21, 1, 7), UNTIL_TIME: "5"}, SettingsError, "start at 21 and stop at 20"),
        (
            {FROM_TIME: "5", **OR_LATEST, ENDING: each(19, 60, 7)},
            SettingsError,
            "start at 20 and stop at 19.*startingTimestamp and endingOffsets",
        ),
        ({FROM_TIME: "6", UNTIL_TIME: "5"}, SettingsError, "start at the time 6 and stop at 5"),
        (
            {STARTING: each(20, 1, 7), ENDING: each(12, 1, 7), **LENIENT},
            SettingsError,
            "start at 20 and stop at 12",
        ),
    ],
)
def test_a_bound_outside_the_log_is_reported_with_its_place(
    options: dict[str, str], raised: type[EtlError], text: str
) -> None:
    with pytest.raises(raised, match=text):
        ranges(**options)


@pytest.mark.parametrize(
    "chosen, partitions",
    [
        (TopicSelection(topics=("clicks",)), CLICKS),
        (TopicSelection(pattern="cli.*"), CLICKS),
        (TopicSelection(pattern=r"^\Qclicks\E\z"), CLICKS),
        (TopicSelection(pattern=r"^\p{Lower}{6,}$"), CLICKS),
        (TopicSelection(partitions=(CLICKS[1],)), [CLICKS[1]]),
    ],
)
def test_topics_are_selected_in_three_ways(
    chosen: TopicSelection, partitions: list[TopicPartition]
) -> None:
    assert chosen.among([*CLICKS, TopicPartition("views", 0)]) == partitions


@pytest.mark.parametrize(
    "chosen, text",
    [
        (TopicSelection(topics=("clicks", "view")), "topic view"),
        (TopicSelection(pattern="views"), "No topic matches"),
        (
            TopicSelection(partitions=(TopicPartition("clicks", 7),)),
            "3 partitions, numbered from 0.*partition 7",
        ),
        (TopicSelection(partitions=(TopicPartition("views", 0),)), "The topic is not there"),
    ],
)
def test_a_missing_selection_is_named(chosen: TopicSelection, text: str) -> None:
    with pytest.raises(TopicMissing, match=text):
        chosen.among(CLICKS)


def test_the_page_of_the_reader_names_every_option() -> None:
    text = Path(__file__).parents[3].joinpath("docs", "READER.md").read_text(encoding="utf-8")
    assert [name for name in (*OURS, *OF_SPARK) if f"`{name}`" not in text] == []


def test_the_release_that_brokers_are_spoken_to_as_is_one_that_is_known() -> None:
    given = {SERVERS: "b:9092", "subscribe": "clicks"}
    assert parse_options(given).fetch.broker_type is None
    assert parse_options({**given, "broker_version": "0.9.0.1"}).fetch.broker_type == "kafka-0.9"
    text = "The API versions of brokers of version 0.7 are unknown.*option broker_version"
    with pytest.raises(SettingsError, match=text):
        parse_options({**given, "broker_version": "0.7"})


# The columns that a schema names


def schema_of(*fields: tuple[str, str, bool]) -> StructType:
    columns = [
        {"name": name, "type": kind, "nullable": nullable, "metadata": {}}
        for name, kind, nullable in fields
    ]
    return StructType.fromJson({"type": "struct", "fields": columns})


def test_a_schema_names_the_columns_that_are_read_in_its_order() -> None:
    schema = schema_of(
        ("offset", "long", True), ("key", "binary", True), ("timestamp", "timestamp", True)
    )
    assert columns_of_schema(schema, parse_options(LEAST)) == ("offset", "key", "timestamp")


@pytest.mark.parametrize(
    ("field", "more", "text"),
    [
        (("nosuch", "long", True), {}, "There is no column 'nosuch'"),
        (("offset", "integer", True), {}, "offset is int, it is bigint"),
        (("offset", "long", False), {}, "offset is bigint NOT NULL"),
        (("timestamp", "timestamp_ntz", True), {}, "timestamp is timestamp_ntz"),
        (("value", "binary", True), {"columns": "offset"}, "no column 'value'"),
        (("broker_id", "integer", True), {}, "no column 'broker_id'"),
        (("headers", "string", True), {"includeHeaders": "false"}, "no column 'headers'"),
    ],
)
def test_a_schema_that_is_not_the_logs_is_refused_with_the_column(
    field: tuple[str, str, bool], more: dict[str, str], text: str
) -> None:
    with pytest.raises(SettingsError, match=text) as raised:
        columns_of_schema(schema_of(field), parse_options({**LEAST, **more}))
    assert raised.value.where["column"] == field[0]


def test_options_of_encryption_and_login_equal_the_keys_of_a_conf() -> None:
    reading = parse_options(
        {
            **LEAST,
            "kafka.security.protocol": "sasl_ssl",
            "tls_ca_file": "/ca.pem",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "sasl_username": "etl",
            "sasl_password": "${file:/run/secrets/kafka}",
        }
    )
    password = SecretRef("file", "/run/secrets/kafka")
    login = Login(Mechanism.SCRAM_SHA_512, "etl", password)
    tls = Tls(LocalFile("/ca.pem"))
    assert reading.fetch.security == Security(SecurityProtocol.SASL_SSL, None, tls, login)
    assert parse_options(LEAST).fetch.security == OPEN
    kerberos = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos.service.name": "brokers",
    }
    login = Login(Mechanism.GSSAPI, service="brokers")
    assert parse_options({**LEAST, **kerberos}).fetch.security.login == login


def test_each_option_of_encryption_and_login_sets_a_key_of_the_conf() -> None:
    for key in SECURITY.values():
        section = "source" if key == ("listener",) else "source.security"
        assert f"{section}.{'.'.join(key)}" in key_names()
    for key in ZOOKEEPER_SECURITY.values():
        assert f"zookeeper.{'.'.join(key)}" in key_names()


def test_a_secret_is_no_value_of_an_option_and_is_not_shown() -> None:
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "sasl_username": "etl",
        "sasl_password": "hunter2",
    }
    words = r"sasl_password: must be a reference, \$\{env:NAME\} or .*option sasl_password"
    with pytest.raises(SettingsError, match=words) as refused:
        parse_options({**LEAST, **given})
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


SASL = "source.security.sasl"


@pytest.mark.parametrize(
    ("error", "message", "where", "action"),
    [
        (
            PermissionDenied(
                "no", key=f"{SASL}.password", action=f"{SASL}.username, and source.security: both"
            ),
            "no",
            {"option": "sasl_password"},
            "sasl_username, and kafka.security.protocol: both",
        ),
        (
            BrokerUnreachable(
                "no token within 2.0 s of source.request_timeout_s", key=f"{SASL}.token", action="a"
            ),
            "no token within 2.0 s of request_timeout_s",
            {"option": "sasl_token"},
            "a",
        ),
        (
            NotKafka("TLS", broker="host:9093", action="source.security.protocol: set SSL"),
            "TLS",
            {"broker": "host:9093"},
            "kafka.security.protocol: set SSL",
        ),
    ],
)
def test_an_error_of_the_way_in_names_options_where_there_is_no_conf(
    error: EtlError, message: str, where: dict[str, str], action: str
) -> None:
    found = with_option_advice(error)
    assert (found.message, found.where, found.action) == (message, where, action)
    assert with_pipeline_advice(error) is error


# Byte offsets

JAFKA = {"broker_type": "jafka", "zookeeper": "a:2181,b:2181/old", "subscribe": "clicks"}
PHYSICAL = [TopicPartition("clicks", number, broker) for broker in (1, 10) for number in range(2)]


def test_brokers_are_found_where_they_are_registered() -> None:
    reading = parse_options(JAFKA)
    assert (reading.physical, reading.zookeeper) == (True, "a:2181,b:2181/old")
    assert (reading.fetch.bootstrap, reading.fetch.isolation) == ((), Isolation.READ_UNCOMMITTED)
    of_kafka = parse_options({**JAFKA, "broker_type": "kafka"})
    assert (of_kafka.physical, of_kafka.zookeeper) == (False, "a:2181,b:2181/old")
    assert of_kafka.fetch.isolation is Isolation.READ_COMMITTED
    assert {"broker_id", "message_index"} <= set(reading.columns)
    some = parse_options({**JAFKA, "columns": "message_index,value"}).columns
    assert some == ("value", "message_index")


def test_a_log_is_named_with_its_broker() -> None:
    found = parse_options(
        {
            **{k: JAFKA[k] for k in ("broker_type", "zookeeper")},
            "assign": '{"clicks": ["1-0", "10-1"]}',
        }
    )
    assert found.selection.partitions == (PHYSICAL[0], PHYSICAL[3])
    text = '[{"topic": "clicks", "broker": 10, "partition": 1, "from": 36, "until": 972}]'
    assert parse_ranges(text, physical=True) == (OffsetRange(PHYSICAL[3], 36, 972),)


def test_bounds_are_given_for_each_log() -> None:
    result = {"clicks": {"1-0": 36, "1-1": -2, "10-0": -2, "10-1": 5}}
    reading = parse_options({**JAFKA, STARTING: json.dumps(result), ENDING: "latest"})
    extents = {
        partition: PartitionOffsets(0, 100, boundaries=(0, 50, 100)) for partition in PHYSICAL
    }
    assert {
        r.partition: (r.from_offset, r.until_offset) for r in ranges_of(reading, extents, {}, {})
    } == {
        PHYSICAL[0]: (36, 100),
        PHYSICAL[1]: (0, 100),
        PHYSICAL[2]: (0, 100),
        PHYSICAL[3]: (5, 100),
    }


@pytest.mark.parametrize(
    "options, named",
    [
        ({"assign": '{"clicks": [0]}'}, "write 1-0"),
        ({"assign": '{"clicks": ["1-01"]}'}, "1-01"),
        ({"subscribe": "t", STARTING: '{"t": {"0": 5}}'}, "write 1-0"),
        ({"subscribe": "t", STARTING: '{"t": {"1-0": "x"}}'}, '"1-0": 36'),
        (
            {"ranges": '[{"topic": "t", "partition": 0, "from": 0, "until": 5}]'},
            "no broker is named",
        ),
        ({"subscribe": "t", SERVERS: "h:1"}, "kafka.bootstrap.servers"),
        ({"subscribe": "t", "zookeeper": "h"}, "connection string"),
        ({"subscribe": "t", "zookeeper": "h:1//x"}, "connection string"),
        ({"subscribe": "t", "broker_type": "pulsar"}, "'pulsar' is no value of broker_type"),
        ({"subscribe": "t", "columns": "nothing"}, "nothing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        parse_options({"broker_type": "jafka", "zookeeper": "a:1", **options})


@pytest.mark.parametrize("name", PHYSICAL_REFUSED)
def test_options_without_a_meaning_there_are_rejected_with_the_reason(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_options({**JAFKA, name: "1"})
    assert PHYSICAL_REFUSED[name] in caught.value.message


def test_a_broker_is_named_only_where_logs_have_one() -> None:
    def ranges_on(*brokers: int) -> str:
        one = {"topic": "t", "partition": 0, "from": 0, "until": 5}
        return json.dumps([{**one, "broker": broker} for broker in brokers])

    with pytest.raises(SettingsError, match="a broker is named"):
        parse_ranges(ranges_on(1))
    with pytest.raises(SettingsError, match="overlap"):
        parse_ranges(ranges_on(1, 1), physical=True)
    assert len(parse_ranges(ranges_on(1, 2), physical=True)) == 2


def test_either_bootstrap_or_zookeeper_locates_the_brokers() -> None:
    with pytest.raises(SettingsError, match="both say"):
        parse_options({SERVERS: "h:1", "zookeeper": "h:1", "subscribe": "t"})
    with pytest.raises(SettingsError, match="No broker is named") as caught:
        parse_options({"subscribe": "t"})
    assert "zookeeper" in caught.value.action


def test_a_partition_missing_on_its_broker_is_reported_with_the_existing_ones() -> None:
    with pytest.raises(TopicMissing, match="2 partitions on broker 10"):
        reject_missing_partitions([TopicPartition("clicks", 2, 10)], PHYSICAL)
    with pytest.raises(TopicMissing, match="not there on broker 3"):
        reject_missing_partitions([TopicPartition("clicks", 0, 3)], PHYSICAL)
