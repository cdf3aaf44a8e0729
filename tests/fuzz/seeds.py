"""Valid examples for the targets, by another encoder where there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.consumer import FetchResponse

from etl.kafka import kafka_python_messages
from etl.kafka.group_messages import render_assignment, render_subscription
from etl.kafka.request_values import FetchTarget, Subscription
from etl.kafka.versions import Api
from etl.ledger import plan_document
from etl.model.partitions import Broker, Committed, Leader, TopicPartition
from etl.model.plans import Loss, LossReason, OffsetRange, PlanKind
from tests.builders import changed, plain_plan
from tests.fakes.batches import Batch, Codec, Rec, control, encode
from tests.fakes.message_sets import Entry, Msg, Wrapper, encode_logical, encode_physical, inside

LOG, OTHER = TopicPartition("clicks", 3), TopicPartition("clicks", 4)
PRODUCER = 4000


_RESPONSES = yaml.safe_load(Path(__file__).with_name("responses.yaml").read_text())
_MODULES = (admin, consumer, metadata, producer, sasl, kafka_python_messages)


def responses(api: Api) -> tuple[bytes, ...]:
    """Return the version as one byte and the response with its correlation id, per known version."""
    _, lowest, highest = api.value
    name = f"{api.name.title().replace('_', '')}Response"
    kind = next(getattr(module, name) for module in _MODULES if hasattr(module, name))
    response = built(kind, _RESPONSES[api.name])
    return tuple(
        bytes([version])
        + (1).to_bytes(4, "big")
        + (b"\0" if response.flexible_version_q(version) else b"")
        + bytes(response.encode(version=version))
        for version in range(lowest, highest + 1)
    )


def built(kind: Any, values: dict[str, Any]) -> Any:
    """A message of kafka-python with these values."""
    return kind(**{name: _value(kind.fields[name], value) for name, value in values.items()})


def _value(field: Any, value: Any) -> Any:
    if value is None:
        return None
    if field.is_struct():
        return built(field.data_class, value)
    if field.is_struct_array():
        return [built(field.data_class, one) for one in value]
    if field.type_str in ("bytes", "uuid"):
        return bytes.fromhex(value) if field.type_str == "bytes" else UUID(value)
    return value


SUBSCRIPTIONS = tuple(
    render_subscription(answer)
    for answer in (
        Subscription(("a", "b")),
        Subscription(("a",), frozenset({TopicPartition("a", 0), TopicPartition("a", 1)}), 6, b"x"),
    )
)
ASSIGNMENTS = tuple(
    map(
        render_assignment,
        ((), (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 3))),
    )
)


FETCHED = FetchTarget(
    TopicPartition("clicks", 3), 0, 1 << 20, topic_id="00000000-0000-0000-0000-0000000000c1"
)


FETCH_VERSIONS = range(Api.FETCH.value[1], Api.FETCH.value[2] + 1)


def fetches() -> tuple[bytes, ...]:
    """The version, then a Fetch response with two partitions, the second out of range."""
    records = (transactions(), *record_sets()[:2])
    contents = []
    for version in FETCH_VERSIONS:
        contents += [bytes([version]) + fetch(version, one) for one in records]
    return tuple(contents)


def fetch(version: int, records: bytes, *, second_code: int = 1) -> bytes:
    topic = FetchResponse.FetchableTopicResponse
    part = topic.PartitionData
    common: dict[str, Any] = {
        "high_watermark": 40,
        "last_stable_offset": 40,
        "log_start_offset": 0,
        "preferred_read_replica": -1,
    }
    aborted = [part.AbortedTransaction(producer_id=PRODUCER, first_offset=0)]
    first = part(
        partition_index=3, error_code=0, aborted_transactions=aborted, records=records, **common
    )
    second = part(
        partition_index=4, error_code=second_code, aborted_transactions=None, records=None, **common
    )
    topic_id = UUID(FETCHED.topic_id or "")
    answer = FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[topic(topic="clicks", topic_id=topic_id, partitions=[first, second])],
    )
    flexible = b"\0" if answer.flexible_version_q(version) else b""
    return flexible + bytes(answer.encode(version=version))


RECORDS = (
    Rec(0, b"hello", b"key", ((b"h", b"1"), (b"\xff\xfe", None)), 5),
    Rec(2, None, None, (), -7),
    Rec(3, b"v" * 200, b"", ((b"", b""),), 0),
)


def record_sets() -> tuple[bytes, ...]:
    """The records field of one partition, with every codec and kind of batch."""
    sets = [
        encode(Batch(0, RECORDS, codec=codec))
        + encode(Batch(4, RECORDS[:1], codec=codec, append_time=True))
        for codec in Codec
    ]
    empty = encode(Batch(0, [], last_delta=3))
    return (
        *sets,
        transactions(),
        empty + encode(Batch(4, RECORDS[:1])),
        encode(Batch(0, RECORDS, codec=Codec.SNAPPY, xerial=False)),
    )


def transactions() -> bytes:
    """Offsets 0 to 3 aborted, 4 to 7 committed, one in a compressed batch, and their markers."""
    first = Batch(0, [Rec(d, b"a") for d in range(3)], producer_id=PRODUCER, transactional=True)
    second = replace(first, base_offset=4, codec=Codec.ZSTD)
    return b"".join(
        encode(each)
        for each in (
            first,
            control(3, PRODUCER, kind=0),
            second,
            control(7, PRODUCER, kind=1),
            replace(control(8, PRODUCER, kind=1), codec=Codec.GZIP),
        )
    )


def bombs(size: int = 320 << 10) -> tuple[bytes, ...]:
    """One record batch each that decompresses to `size` zeros."""
    return tuple(encode(Batch(0, [Rec(0, bytes(size))], codec=codec)) for codec in Codec if codec)


MESSAGES = (
    Msg(0, b"hello", b"key", 5),
    Msg(2, None, None, -1),
    Msg(3, b"v" * 200, b"", 7, append_time=True),
)


def message_sets() -> tuple[bytes, ...]:
    """One partition's records in formats v0 and v1, every codec, mixed with batches."""

    def later(codec: Codec, xerial: bool = True) -> Wrapper:
        return Wrapper(
            [replace(message, offset=message.offset + 5) for message in MESSAGES],
            codec,
            9,
            append_time=True,
            xerial=xerial,
        )

    sets = [
        encode_logical([*MESSAGES, later(codec), Msg(9)], magic)
        for magic in (0, 1)
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    ]
    at_0 = encode_logical(
        [Wrapper(MESSAGES, Codec.GZIP, offset=0), later(Codec.SNAPPY, xerial=False)], 1
    )
    mixed = (
        encode_logical(MESSAGES, 0)
        + encode_logical([later(Codec.GZIP)], 1)
        + encode(Batch(9, RECORDS))
    )
    return (*sets, at_0, mixed)


def message_bombs(size: int = 320 << 10) -> tuple[bytes, ...]:
    """Wrappers that decompress to `size` zeros."""
    return tuple(
        encode_logical([Wrapper([Msg(offset, bytes(size))], codec)], magic)
        for magic in (0, 1)
        for offset in (0, 7)
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    )


def packed_messages(magic: int) -> tuple[bytes, ...]:
    return inside(MESSAGES, magic, 0), inside(MESSAGES[:1], magic, 0)


def physical_sets() -> tuple[bytes, ...]:
    """Message sets of 0.7, nested ones too."""
    plain = [Entry(b"hello"), Entry(b"", magic=0), Entry(b"v" * 200)]
    packed = [Entry(inside=plain, codec=codec) for codec in (Codec.GZIP, Codec.SNAPPY)]
    sets = (
        plain,
        [*packed, *plain],
        [Entry(inside=[*plain, *packed]), Entry(inside=[])],
        [Entry(inside=plain, codec=Codec.SNAPPY, xerial=False)],
    )
    return tuple(encode_physical(entries) for entries in sets)


def physical_bombs(size: int = 320 << 10) -> tuple[bytes, ...]:
    """Entries that decompress to `size` zeros: at once, and by many that are nested."""
    many = [Entry(inside=[Entry(bytes(size // 8))])] * 8
    return tuple(
        encode_physical([each]) for each in (Entry(inside=[Entry(bytes(size))]), Entry(inside=many))
    )


PLAN = plan_document.with_id(
    plain_plan(
        7,
        uid="feedbeef",
        created_at_ms=1_700_000_000_000,
        ranges=(OffsetRange(LOG, 5, 9, Leader(Broker(0, "h", 9092), 3)), OffsetRange(OTHER, 0, 4)),
        loaded_until={LOG: 9, OTHER: 4},
        expected_commits={LOG: Committed(5, 1), OTHER: Committed()},
        table_id="t1",
        topic_ids={"clicks": "x"},
        previous="p" * 32,
        table_transaction_version=6,
        lost=(Loss(LOG, 1, 5, LossReason.EXPIRED),),
        log_starts={LOG: 5},
    )
)
START = plan_document.with_id(
    changed(
        PLAN,
        number=1,
        kind=PlanKind.START,
        ranges=(),
        losses=replace(PLAN.losses, lost=()),
        log_starts={},
        pending_starts={TopicPartition("clicks", 9): 5},
    )
)


def plans() -> tuple[bytes, ...]:
    return tuple(plan_document.render_plan(plan) for plan in (PLAN, START))


def commits_of_ours() -> tuple[bytes, ...]:
    return tuple(
        plan_document.render_commit_metadata(plan, "offset-range-etl/c1/g/p").encode()
        for plan in (PLAN, START)
    )


def _line(*actions: dict[str, Any]) -> bytes:
    return "\n".join(json.dumps(action) for action in actions).encode() + b"\n"


_KEY = {"name": "key", "type": "string", "nullable": True, "metadata": {"x": 1}}
_HEADERS = {
    "type": "array",
    "containsNull": True,
    "elementType": {"type": "struct", "fields": [_KEY]},
}
_FIELDS = [
    {"name": "offset", "type": "long", "nullable": True, "metadata": {}},
    {"name": "headers", "type": _HEADERS, "nullable": True, "metadata": {}},
]
SCHEMA = json.dumps({"type": "struct", "fields": _FIELDS})
_ADDED = {"path": "topic=a%20b/part-0", "partitionValues": {"topic": "a b"}, "dataChange": True}
_TABLE = {"id": "id-1", "schemaString": SCHEMA, "partitionColumns": ["topic"], "configuration": {}}
COMMITS = (
    _line(
        {"commitInfo": {"operation": "WRITE", "userMetadata": "{}"}},
        {"txn": {"appId": "offset-range-etl/c/g/p", "version": 3}},
        {"add": _ADDED},
    ),
    _line(
        {"commitInfo": {"operation": "DELETE"}},
        {"remove": {"path": "x", "dataChange": True}},
        {"protocol": {"minReaderVersion": 1}},
    ),
    _line({"metaData": _TABLE}),
)

CONF = b"""pipeline: clicks
group: {id: etl-clicks, mode: observe}
zookeeper: {connect: "127.0.0.1:2181/kafka", session_timeout_s: 10}
source:
  bootstrap_servers: "127.0.0.1:9092"
  topics: ["clicks"]
  exclude_topics: ["x.*"]
  starting_offsets: 2026-01-31T00:00:00+00:00
  on_data_loss: fail
  isolation_level: read_committed
  request_timeout_s: 30
table: {path: "warehouse/clicks", partition_by: [event_date]}
limits: {max_records_per_plan: 5}
transform: jobs.rows:only
report: {path: reports}
spark: {spark.master: "local[2]", spark.ui.enabled: false}
"""
CONFS = (CONF, CONF.replace(b"warehouse/clicks", b"${env:PATH}/x"))
STRANGE_CONFS = (
    CONF + b"x: &a [1, *a]\n",
    CONF + b"x: &a {k: 1}\ny: &b {<<: [*a, *a]}\n",
    CONF + b"x: [[[[[[]]]]]]\n? !!set {a}\n: !!int 0x5\n",
)


def conf_document() -> bytes:
    """The same as JSON, for edits of its structure."""
    return json.dumps(yaml.safe_load(CONF), default=str).encode()


def many(*documents: Any) -> Sequence[bytes]:
    return tuple(json.dumps(document).encode() for document in documents)
