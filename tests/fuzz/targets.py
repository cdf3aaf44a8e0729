"""All parsers of foreign bytes in one table: the call, valid examples, allowed exceptions.

A target without exceptions returns None for invalid input. The memory limit of one input is
`floor_bytes` plus `multiple` bytes for each byte of the input; the multiple depends on the memory
of Python objects for one byte of JSON or YAML.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

from etl import errors
from etl.commands.operator_decisions import parse_skip
from etl.errors import BrokerRefusal
from etl.io.delta.log import parse_added, parse_commit, parse_removed, parse_shape
from etl.io.zookeeper.ledger import PlanLedger
from etl.kafka import (
    broker_types,
    fetch_messages,
    group_messages,
    kafka_python_messages,
    many_partition_messages,
)
from etl.kafka import jafka_broker_type as jafka_errors
from etl.kafka.primitives import Reader
from etl.kafka.request_values import FetchAnswer
from etl.kafka.versions import Api, error_of
from etl.ledger import documents, plan_document
from etl.ledger.owner_nodes import (
    DriverNode,
    OwnerNode,
    parse_driver,
    parse_owner,
    render_driver,
    render_owner,
)
from etl.ledger.registrations import (
    FilteredTopics,
    dialect_of,
    parse_broker,
    parse_cluster_id,
    parse_count,
    parse_endpoints,
    parse_listeners,
    parse_offset,
    parse_partition_state,
    parse_physical_broker,
    parse_registration,
    parse_replicas,
    parse_topic_config,
    parse_uid,
    render_registration,
)
from etl.model.partitions import (
    BrokerFamily,
    parse_interval,
    parse_intervals,
    parse_partition,
    parse_partition_key,
)
from etl.model.security import Security, SecurityProtocol
from etl.model.snapshot import LoadedIntervals
from etl.reader.options import parse_options, parse_ranges
from etl.settings.choices import split_address
from etl.settings.load import load_settings, parse_change, parse_settings
from etl.settings.source import parse_timestamp
from etl.settings.until_and_run_key import parse_bound
from tests.fakes.any_documents import KINDS, any_document, text_of
from tests.fakes.batches import Codec, answer, compress
from tests.fakes.old_logs import OLD_CODECS
from tests.fuzz import records, seeds

MIB = 1 << 20
LOG = seeds.LOG


@dataclass(frozen=True)
class Target:
    name: str
    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    raises: tuple[type[Exception], ...] = ()
    """Exactly these classes, no narrower ones."""
    is_json: bool = False
    """Its seeds are JSON, one document a line: they may be made wrong as documents too."""
    multiple: int = 400
    floor_bytes: int = 4 * MIB
    bad: Sequence[bytes] = ()
    """Further starting points that the parser rejects."""


# Responses


def _response(api: Api, parse: Callable[[Any], object]) -> Callable[[bytes], object]:
    _, lowest, highest = api.value

    def read(content: bytes) -> object:
        version = lowest + (content[0] - lowest) % (highest - lowest + 1) if content else lowest
        return parse(
            kafka_python_messages.decode(api, version, memoryview(content[1:]), broker="b:9092")
        )

    return read


_PARSERS: dict[Api, Callable[[Any], object]] = {
    Api.SASL_HANDSHAKE: broker_types.parse_mechanisms,
    Api.SASL_AUTHENTICATE: broker_types.parse_token,
    Api.API_VERSIONS: kafka_python_messages.parse_api_versions,
    Api.METADATA: kafka_python_messages.parse_metadata,
    Api.LIST_OFFSETS: lambda response: (
        kafka_python_messages.parse_list_offsets(response),
        kafka_python_messages.parse_offsets_before(response, 1),
    ),
    Api.OFFSET_COMMIT: many_partition_messages.parse_commit,
    Api.OFFSET_FETCH: lambda response: [
        many_partition_messages.parse_offset_fetch(response, in_zookeeper=kept)
        for kept in (False, True)
    ],
    Api.PRODUCE: fetch_messages.parse_produce,
    Api.FIND_COORDINATOR: many_partition_messages.parse_coordinator,
    Api.DESCRIBE_CONFIGS: kafka_python_messages.parse_retention,
    Api.DESCRIBE_PRODUCERS: kafka_python_messages.parse_open_transactions,
    Api.LIST_TRANSACTIONS: kafka_python_messages.parse_transactional_ids,
    Api.DESCRIBE_TRANSACTIONS: kafka_python_messages.parse_transactions,
    Api.DESCRIBE_GROUPS: lambda response: kafka_python_messages.parse_describe_groups(
        response, "g"
    ),
    Api.JOIN_GROUP: group_messages.parse_join,
    Api.SYNC_GROUP: group_messages.parse_sync,
    Api.HEARTBEAT: group_messages.parse_heartbeat,
    Api.LEAVE_GROUP: group_messages.parse_leave,
    Api.CONSUMER_GROUP_HEARTBEAT: group_messages.parse_consumer_heartbeat,
    Api.CONSUMER_GROUP_DESCRIBE: lambda response: group_messages.parse_consumer_group(
        response, "g"
    ),
}
_PARSERS_OF_MANY_LOGS: dict[Api, Callable[..., many_partition_messages.ThrottledAnswer[Any]]] = {
    Api.LIST_OFFSETS: many_partition_messages.parse_offsets,
    Api.OFFSET_FOR_LEADER_EPOCH: many_partition_messages.parse_epoch_ends,
    Api.DESCRIBE_LOG_DIRS: many_partition_messages.parse_log_dirs,
    Api.METADATA: many_partition_messages.parse_cluster,
}
_FIRST_OF_MANY_LOGS = {
    Api.LIST_OFFSETS: many_partition_messages.FIRST_LISTED,
    Api.METADATA: many_partition_messages.FIRST_CLUSTER,
}


def _about_logs(
    api: Api, parse: Callable[..., many_partition_messages.ThrottledAnswer[Any]]
) -> Callable[[bytes], object]:
    lowest, highest = max(api.value[1], _FIRST_OF_MANY_LOGS.get(api, 0)), api.value[2]

    def read(content: bytes) -> object:
        version = lowest + (content[0] - lowest) % (highest - lowest + 1) if content else lowest
        return parse(version, memoryview(content[1:]), broker="b:9092")

    return read


def _numbers(content: bytes) -> object:
    """The first byte is the number of reads of the rest, each with its own first byte."""
    reader = Reader(memoryview(content), broker="b:9092")
    calls: list[Callable[[], object]] = [
        reader.int8,
        reader.int16,
        reader.int32,
        reader.int64,
        lambda: reader.string16("text"),
        lambda: reader.count("items", item_bytes=4),
        lambda: bytes(reader.span(reader.int32(), "span")),
    ]
    return [calls[reader.int8() % len(calls)]() for _ in range(reader.count("calls", item_bytes=1))]


def _code(error_of: Callable[[int], BrokerRefusal | None]) -> Callable[[bytes], object]:
    def read(content: bytes) -> object:
        refusal = error_of(int.from_bytes(content[:2], "big", signed=True))
        return refusal and (
            refusal,
            str(refusal.error("fetch", topic="clicks")),
            refusal.error("fetch", topic="clicks").as_json(),
        )

    return read


def _fetch(content: bytes) -> FetchAnswer:
    version = (content[0] & 0x7F) % len(seeds.FETCH_VERSIONS) if content else 4
    return fetch_messages.parse_fetch(
        version, memoryview(bytearray(content[1:])), [seeds.FETCHED], broker="b:9092"
    )


def _fetch_to_rows(content: bytes) -> None:
    """An answer's bytes, to Arrow batches. The high bit of the first byte: wrong CRCs."""
    for fetched in _fetch(content).partitions:
        found = bytes(fetched.records)
        kept = found if content[0] & 0x80 else records.sealed(found)
        code = fetched.refusal.code if fetched.refusal else 0
        records.rows(
            answer(
                kept,
                error_code=code,
                aborted=fetched.aborted,
                high_watermark=fetched.high_watermark or 0,
                log_start_offset=fetched.log_start_offset,
            )
        )


# Znodes and documents


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return content.decode("utf-8", "replace")


def _physical_broker(content: bytes) -> None:
    found = parse_physical_broker("7", content)
    if found is not None and dialect_of(content) is not BrokerFamily.JAFKA:
        raise AssertionError("a broker of another family than its registration")


def _partition_key(content: bytes) -> object:
    partition = parse_partition_key("clicks", _text(content))
    return partition and partition.key


def _registration(content: bytes) -> None:
    """A parsed registration is rendered with the same meaning for its broker type."""
    found = parse_registration(content, path="/consumers/g/ids/c")
    if found.dialect is BrokerFamily.JAFKA and isinstance(found.reads, FilteredTopics):
        return
    if parse_registration(render_registration(found, now_ms=5), path="/p") != found:
        raise AssertionError(f"{content!r} is read as {found}, and written as another text")


def _owner(content: bytes) -> None:
    """A parsed owner of ours is rendered the same; no other client's is parsed as ours."""
    owner = _text(content)
    found = parse_owner("g", owner)
    if found is not None and parse_owner("g", render_owner("g", found).decode()) != found:
        raise AssertionError(f"{owner!r} is read as {found}, and written as another text")


def _signed(content: bytes) -> None:
    """A plan with a correct id for any content, so that the code after the hash is reached."""
    hashed = plan_document.id_of_document

    def its_own(document: Mapping[str, Any]) -> str:
        hashed(document)
        return str(document["id"])

    with mock.patch.object(plan_document, "id_of_document", its_own):
        plan_document.parse_plan(zlib.compress(content), path="/p")


def _stamp(content: bytes) -> None:
    stamp = plan_document.parse_commit_metadata(_text(content), 5)
    if stamp is not None and stamp.document is not None:
        plan_document.parse_plan(stamp.document, path="the table's log")


class _OneZnode:
    """A ZooKeeper in which every znode holds the same, and no piece of a document is there."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def read(self, path: str) -> tuple[bytes, int]:
        return self._payload, 0

    def read_all(self, paths: Sequence[str]) -> list[None]:
        return [None for _ in paths]


def _ledger(content: bytes) -> object:
    ledger = PlanLedger(_OneZnode(content), "g", "p")  # type: ignore[arg-type]
    return ledger.read_loaded_intervals()


def _znode(parse: Callable[..., object]) -> Callable[[bytes], object]:
    return lambda content: parse(content, path="/p")


def _deflated(parse: Callable[..., object]) -> Callable[[bytes], object]:
    return lambda content: parse(zlib.compress(content), path="/p")


def _of_document(kind: type[Any]) -> list[Target]:
    """A class of stored documents, as it is stored and as JSON."""
    parse = partial(documents.parse, kind)
    name = kind.__name__.lower()
    stored = tuple(documents.render(any_document(kind, seed)) for seed in range(3))
    as_json = tuple(text_of(payload).encode() for payload in stored)
    if stored == as_json:
        return [Target(f"{name}-document", _znode(parse), stored, _DOCUMENT, is_json=True)]
    return [
        Target(f"{name}-znode", _znode(parse), stored, _DOCUMENT),
        Target(f"{name}-document", _deflated(parse), as_json, _DOCUMENT, is_json=True),
    ]


def _of_records(
    name: str,
    read: Callable[[bytes], object],
    examples: Iterable[bytes],
    raises: tuple[type[Exception], ...] | None = None,
    bad: Iterable[bytes] = (),
) -> Target:
    """A reader of records: their buffers take some memory for any input."""
    named = _RECORDS if raises is None else raises
    return Target(name, read, tuple(examples), named, floor_bytes=24 * MIB, bad=tuple(bad))


def _of_text(
    name: str,
    parse: Callable[[str], object],
    *examples: bytes,
    raises: tuple[type[Exception], ...] = (),
    **bounds: Any,
) -> Target:
    return Target(name, lambda content: parse(_text(content)), examples, raises, **bounds)


def _of_json(
    name: str,
    parse: Callable[[bytes], object],
    *examples: Any,
    raises: tuple[type[Exception], ...] = (),
) -> Target:
    return Target(name, parse, seeds.many(*examples), raises, is_json=True)


# Tables, confs, texts


def _shape(content: bytes) -> object:
    return parse_shape("id", _text(content), ("topic",))


def _conf_file(content: bytes) -> object:
    path = Path(_folder().name) / "conf.yaml"
    path.write_bytes(content)
    return load_settings(path)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _conf_document(content: bytes) -> object:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return parse_settings(document)


def _options(content: bytes) -> object:
    try:
        options = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if isinstance(options, dict):
        return parse_options({str(k): str(v) for k, v in options.items()})
    return None


def _unmark(content: bytes) -> object:
    found = errors.unmark(_text(content))
    return found and (str(found), found.as_json(), found.exit_code)


_MARKED = tuple(
    (f"Traceback\n x\n{errors.mark(error)}\tat y\n").encode()
    for error in (
        errors.CorruptData("no", action="it", topic="clicks", offset=5),
        errors.EtlError("what"),
    )
)
_OPTIONS = {"kafka.bootstrap.servers": "b1:9092,b2:9092"}
_ZEROS = bytes(320 << 10)
_SETTINGS = (errors.SettingsError,)
_DOCUMENT = (errors.LedgersDisagree, errors.NeedsDecision)
_RECORDS = (errors.CorruptData, errors.MessageTooLarge, errors.RecordTooLarge)
_PHYSICAL = (*_RECORDS, errors.MisalignedOffset)
_FEED = (
    *_RECORDS,
    errors.ExpiredOffsets,
    errors.RanOutBeforeUntil,
    errors.BrokerError,
    errors.PermissionDenied,
    errors.TopicMissing,
    errors.SettingsError,
    errors.EtlError,
)
_OWNED = render_owner("g", OwnerNode("p", DriverNode("h", 7, "99", "r", "0a1b2c3d-7")))
_INDEX = json.dumps({"chunks": "0" * 64, "count": 2, "bytes": 1_000_000}).encode()

TARGETS: tuple[Target, ...] = (
    *(
        Target(
            f"response-{api.name.lower().replace('_', '-')}",
            _response(api, parse),
            seeds.responses(api),
            (errors.CorruptData,),
        )
        for api, parse in _PARSERS.items()
    ),
    *(
        Target(
            f"logs-{api.name.lower().replace('_', '-')}",
            _about_logs(api, parse),
            [one for one in seeds.responses(api) if one[0] >= _FIRST_OF_MANY_LOGS.get(api, 0)],
            (errors.CorruptData,),
        )
        for api, parse in _PARSERS_OF_MANY_LOGS.items()
    ),
    Target(
        "subscription",
        group_messages.parse_subscription,
        seeds.SUBSCRIPTIONS,
        (errors.CorruptData,),
    ),
    Target("assignment", group_messages.parse_assignment, seeds.ASSIGNMENTS, (errors.CorruptData,)),
    Target("jafka-answers", records.jafka_answer, records.JAFKA_ANSWERS, (errors.CorruptData,)),
    Target(
        "numbers",
        _numbers,
        (b"\0\0\0\3\0\1\1\0\2\4\0\1x", b"\0\0\0\1\6\0\0\0\2ab"),
        (errors.CorruptData,),
    ),
    Target("error-codes", _code(error_of), (b"\0\0", b"\0\1", b"\xff\xff")),
    Target(
        "jafka-error-codes", _code(jafka_errors.error_of), (b"\0\0", b"\0\1", b"\xff\xff", b"\0\7")
    ),
    Target("fetch", _fetch, seeds.fetches(), (errors.CorruptData,)),
    _of_records(
        "fetch-to-rows",
        _fetch_to_rows,
        (
            bytes([version]) + seeds.fetch(version, found, second_code=0)
            for version in (4, 11)
            for found in (*seeds.record_sets(), *seeds.message_sets())
        ),
        _FEED,
    ),
    _of_records(
        "record-batches",
        records.record_batches,
        (mark + found for mark in (b"\0\x28\1", b"\1\5\3") for found in seeds.record_sets()),
        bad=(b"\0\x28\1" + bomb for bomb in seeds.bombs()),
    ),
    _of_records(
        "packed-records",
        records.packed_records,
        (bytes([codec + 15]) + records.PLAIN_RECORDS for codec in Codec),
    ),
    _of_records(
        "codec-payloads",
        records.payload,
        (bytes([codec - 1]) + one for codec in Codec if codec for one in records.streams(codec)),
        bad=(bytes([codec - 1]) + compress(_ZEROS, codec) for codec in Codec if codec),
    ),
    _of_records(
        "message-sets",
        records.record_batches,
        (mark + found for mark in (b"\0\x28\1", b"\1\5\3") for found in seeds.message_sets()),
        bad=(b"\0\x28\1" + bomb for bomb in seeds.message_bombs()),
    ),
    _of_records(
        "packed-messages",
        records.packed_messages,
        (bytes([mark]) + one for mark in range(8) for one in seeds.packed_messages(mark & 1)),
    ),
    _of_records(
        "message-payloads",
        records.message_payload,
        records.message_streams(),
        bad=(bytes([i << 1]) + compress(_ZEROS, codec) for i, codec in enumerate(OLD_CODECS)),
    ),
    _of_records(
        "physical-sets",
        records.physical_sets,
        (b"\0" + found for found in seeds.physical_sets()),
        _PHYSICAL,
        bad=(b"\0" + bomb for bomb in seeds.physical_bombs()),
    ),
    _of_records(
        "packed-entries",
        records.packed_entries,
        (bytes([mark]) + found for mark in range(8) for found in seeds.physical_sets()),
        _PHYSICAL,
    ),
    _of_records(
        "entry-payloads",
        records.entry_payload,
        (
            bytes([i]) + compress(found, codec)
            for i, codec in enumerate(OLD_CODECS[:2])
            for found in seeds.physical_sets()
        ),
        _PHYSICAL,
        bad=(bytes([i]) + compress(_ZEROS, codec) for i, codec in enumerate(OLD_CODECS[:2])),
    ),
    _of_records(
        "jafka-fetch-to-rows",
        records.jafka_to_rows,
        records.JAFKA_FETCHED,
        (*_FEED, errors.MisalignedOffset),
        bad=records.JAFKA_REFUSED,
    ),
    _of_records(
        "one-at-a-time",
        records.one_at_a_time,
        (
            *(b"\0\0" + found for found in (*seeds.record_sets(), *seeds.message_sets())),
            *(b"\1\0" + found for found in seeds.physical_sets()),
        ),
        _PHYSICAL,
    ),
    Target("partition-key", _partition_key, (b"3", b"0-3", b"03", b"9999999999")),
    Target(
        "offset",
        lambda c: parse_offset(c, path="/p", partition=LOG),
        (b"0", b"9223372036854775807"),
        (errors.BadOffset,),
    ),
    _of_json(
        "broker",
        lambda c: parse_broker("7", c),
        {"host": "b", "port": 9092, "endpoints": []},
        {"host": None, "port": -1, "endpoints": ["SSL://x:1", "PLAINTEXT://[::1]:9092"]},
    ),
    _of_json(
        "listeners",
        lambda c: (
            parse_listeners(c),
            parse_endpoints(c),
            parse_broker("7", c, Security(SecurityProtocol.SASL_SSL, "INSIDE")),
        ),
        {
            "endpoints": ["INSIDE://b:9094", "SSL://x:1"],
            "listener_security_protocol_map": {"INSIDE": "SASL_SSL"},
        },
    ),
    Target(
        "physical-broker",
        _physical_broker,
        (b"vm-1:vm:9092", b"vm-1:fe80##1:9092:true", b"\xac\xed\0\5t\0\x0cvm-1:vm:9092"),
    ),
    Target("partition-count", parse_count, (b"12",)),
    _of_json("cluster-id", parse_cluster_id, {"version": "1", "id": "c1"}),
    _of_json("replicas", parse_replicas, {"version": 1, "partitions": {"0": [1, 2], "1": [2]}}),
    _of_json("topic-config", parse_topic_config, {"config": {"cleanup.policy": "compact"}}),
    _of_json(
        "partition-state", parse_partition_state, {"leader": -1, "leader_epoch": 3, "isr": [1]}
    ),
    Target(
        "driver",
        parse_driver,
        (render_driver(DriverNode("h", 7, "99", "r", "0a1b2c3d-7")),),
        is_json=True,
    ),
    Target(
        "registration",
        _registration,
        (
            b'{"clicks":2,"orders":1}',
            b"*4*clicks.*",
            b"!4!(a|b)[0-9]+",
            *seeds.many(
                *(
                    {"version": 1, "subscription": {text: 2}, "pattern": pattern, "timestamp": "5"}
                    for text, pattern in (
                        ("clicks", "static"),
                        (r"(?i:a\.b|[c-f]+)\d{3}", "white_list"),
                        (r"(?!x)\p{Alpha}\Q.\E.*?", "black_list"),
                    )
                )
            ),
        ),
        _SETTINGS,
        is_json=True,
    ),
    Target("owner", _owner, (_OWNED,)),
    Target("uid", _znode(parse_uid), (b"", b"feedbeef"), (errors.LedgersDisagree,)),
    Target("plan-znode", _znode(plan_document.parse_plan), seeds.plans(), _DOCUMENT),
    *(
        Target(
            f"{name}-document",
            read,
            tuple(zlib.decompress(p) for p in seeds.plans()),
            _DOCUMENT,
            is_json=True,
        )
        for name, read in (("plan", _deflated(plan_document.parse_plan)), ("signed-plan", _signed))
    ),
    *(target for kind in KINDS for target in _of_document(kind)),
    Target("stamp", _stamp, seeds.commits_of_ours(), _DOCUMENT, is_json=True),
    Target(
        "ledger-znode",
        _ledger,
        (documents.render(any_document(LoadedIntervals, 0)),),
        _DOCUMENT,
        is_json=True,
        bad=(_INDEX,),
    ),
    Target(
        "commit-file",
        lambda c: parse_commit(5, c),
        seeds.COMMITS,
        (errors.TableUnreachable,),
        is_json=True,
    ),
    Target("added-files", parse_added, seeds.COMMITS, (errors.TableUnreachable,), is_json=True),
    Target("removed-files", parse_removed, seeds.COMMITS, (errors.TableUnreachable,), is_json=True),
    Target(
        "table-shape", _shape, (seeds.SCHEMA.encode(),), (errors.TableUnreachable,), is_json=True
    ),
    Target("conf-file", _conf_file, seeds.CONFS, _SETTINGS, multiple=4000, bad=seeds.STRANGE_CONFS),
    Target("conf-document", _conf_document, (seeds.conf_document(),), _SETTINGS, is_json=True),
    _of_text("address", split_address, b"host:9092", b"[::1]:2181", raises=(ValueError,)),
    _of_text(
        "bound",
        partial(parse_bound, now_ms=1_700_000_000_000, key="--until"),
        b"2026-01-31T00:00:00Z",
        b"-1h",
        raises=_SETTINGS,
    ),
    _of_text(
        "timestamp",
        parse_timestamp,
        b"2026-01-31T00:00:00Z",
        b"2026-01-31 00:00+05:30",
        raises=(ValueError,),
    ),
    _of_text(
        "change",
        parse_change,
        b"limits.max_records_per_plan=1000",
        b"source.topics=[a, b]",
        raises=_SETTINGS,
        multiple=4000,
    ),
    _of_json(
        "source-options",
        _options,
        {**_OPTIONS, "subscribe": "clicks", "columns": "key,offset"},
        {**_OPTIONS, "kafka.isolation.level": "read_committed", "ranges": "[]"},
        {**_OPTIONS, "subscribe": "clicks", "fetch_max_bytes": "5000"},
        raises=_SETTINGS,
    ),
    _of_text("skip-option", parse_skip, b"clicks:3:100-101", raises=_SETTINGS),
    _of_json(
        "ranges-option",
        lambda c: parse_ranges(_text(c)),
        [{"topic": "clicks", "partition": 0, "from": 10, "until": 20}],
        raises=_SETTINGS,
    ),
    Target("marked-error", _unmark, _MARKED),
    _of_text("partition", parse_partition, b"clicks:3", b"clicks:1-0"),
    _of_text("interval", parse_interval, b"clicks:3:10-20", b"clicks:1-0:10-20"),
    _of_text(
        "intervals", parse_intervals, b"clicks:3:10-20", b"a:0:0-1 a:1:2-3", raises=(ValueError,)
    ),
)
BY_NAME = {target.name: target for target in TARGETS}
