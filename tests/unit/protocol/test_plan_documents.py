"""Plans and their results as bytes; invalid documents are rejected by name."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from etl.errors import LedgersDisagree, NeedsDecision, SettingsError
from etl.ledger import plan_document
from etl.ledger.documents import FORMAT, WRITTEN_MAX_BYTES, canonical, parse, render
from etl.ledger.plan_document import (
    METADATA_FULL_BYTES,
    RANGES_MAX,
    content_of,
    parse_commit_metadata,
    parse_plan,
    plan_content,
    render_commit_metadata,
    render_plan,
    with_id,
)
from etl.model.partitions import Broker, Committed, Leader, TopicPartition
from etl.model.plans import (
    CommitResult,
    OffsetRange,
    Plan,
    PlanKind,
    PlanOrigin,
    RangeResult,
    TableExpectation,
)
from etl.model.snapshot import CommitMetadata, Interval, LoadedIntervals
from tests.builders import changed, kafka_named, plain_plan
from tests.fakes.any_plans import plans

APP_ID = "offset-range-etl/cluster/group/clicks"
LOG = TopicPartition("clicks", 0)


def plan_of(partitions: int, **changes: Any) -> Plan:
    return with_id(changed(plan_without_id(partitions), **changes))


def plan_without_id(partitions: int) -> Plan:
    leaders = [Leader(Broker(i, f"broker-{i}.example.org", 9092), 5) for i in range(6)]
    ranges = list[OffsetRange]()
    for number in range(partitions):
        start = 10_000_000_000 + number * 7919 % 1_000_003
        until = start + 1000 + number * 31 % 977
        partition = TopicPartition("clicks", number)
        ranges.append(OffsetRange(partition, start, until, leaders[number % 6]))
    return plain_plan(
        7,
        uid="feedbeef",
        created_at_ms=1_700_000_000_000,
        ranges=tuple(ranges),
        loaded_until={one.partition: one.until_offset for one in ranges},
        expected_commits={one.partition: Committed(one.from_offset, 6) for one in ranges},
        table_id="t",
        previous="p" * 32,
    )


def turn(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    return dict(reversed(list(mapping.items())))


def document_of(payload: bytes) -> dict[str, Any]:
    return json.loads(zlib.decompress(payload))  # type: ignore[no-any-return]


def payload_of(document: Any) -> bytes:
    return zlib.compress(json.dumps(document).encode())


@given(plans())
def test_a_plan_comes_back_from_its_znode(plan: Plan) -> None:
    assert parse_plan(render_plan(plan), path="/p") == plan


@given(plans())
def test_the_order_of_a_plan_changes_no_byte(plan: Plan) -> None:
    turned = changed(
        plan,
        loaded_until=turn(plan.loaded_until),
        expected_commits=turn(plan.expected_commits),
        topic_ids=turn(plan.topic_ids),
    )
    assert with_id(turned).id == plan.id
    assert render_plan(turned) == render_plan(plan)


@given(plans())
def test_an_id_is_a_hash_without_leaders(plan: Plan) -> None:
    content = plan_content(plan)
    assert zlib.decompress(render_plan(plan)) == canonical(content)
    del content["id"], content["leaders"], content["ranges"]["leader"], content["ranges"]["epoch"]
    content.pop("generations", None)
    content.pop("void", None)
    if "handed_over" in content:
        content["handed_over"] = True
    assert plan.id == hashlib.sha256(canonical(content)).hexdigest()[:32]


def test_the_content_of_a_plan_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Plan]()

    def counted(plan: Plan) -> dict[str, Any]:
        made.append(plan)
        return content_of(plan)

    monkeypatch.setattr(plan_document, "content_of", counted)
    plan = with_id(plan_without_id(3))
    znode, metadata = render_plan(plan), render_commit_metadata(plan, APP_ID)
    assert len(made) == 1
    assert parse_plan(znode, path="/p") == parse_commit_plan(metadata) == plan
    assert render_plan(plan) == znode and sum(one is plan for one in made) == 0
    changed = with_id(replace(plan, number=8))
    assert changed.id != plan.id and parse_plan(render_plan(changed), path="/p") == changed


def parse_commit_plan(metadata: str) -> Plan:
    return parse_plan(base64.b85decode(json.loads(metadata)["plan_zlib"]), path="/p")


def test_the_id_does_not_change_with_the_format_of_the_code() -> None:
    """Golden: a plan that an older driver stored must still hash to its id."""
    plan = with_id(
        plain_plan(
            number=2,
            origin=PlanOrigin(pipeline_id="feedbeef", created_at_ms=1_700_000_000_000),
            kind=PlanKind.INGEST,
            cluster=kafka_named("c1"),
            shape="s1",
            ranges=(OffsetRange(LOG, 5, 9, Leader(Broker(0, "h", 9092), 3)),),
            loaded_until={LOG: 9},
            expected_commits={LOG: Committed(5, 1)},
            table=TableExpectation(id="t1"),
        )
    )
    assert plan.id == "ed06ed651b934f2a96537b407afd02ec"


@pytest.mark.parametrize("older", [1, 2])
def test_a_document_of_an_older_format_is_rejected(older: int) -> None:
    document = document_of(render_plan(plan_of(2)))
    document["format"] = older
    with pytest.raises(LedgersDisagree, match=f"no version writes format {older}"):
        parse_plan(payload_of(document), path="/p")


def test_of_which_generation_a_leader_is_comes_back_and_is_no_part_of_the_id() -> None:
    partition, old = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
    ranges = (
        OffsetRange(partition, 0, 5, Leader(Broker(0, "h", 9092))),
        OffsetRange(old, 0, 5, Leader(Broker(1, "h", 9093, "kafka-0.8"))),
    )
    plan = with_id(plain_plan(1, loaded_until={partition: 5, old: 5}, ranges=ranges))
    found = parse_plan(render_plan(plan), path="p")
    assert [r.leader.broker.broker_type for r in found.ranges if r.leader] == [None, "kafka-0.8"]
    without_leaders = tuple(replace(r, leader=None) for r in ranges)
    assert plan.id == with_id(replace(plan, ranges=without_leaders)).id


def test_the_time_zone_of_a_plan_is_parsed_outside_its_id_and_may_be_missing() -> None:
    without = plan_of(3)
    plan = changed(without, time_zone="Asia/Tokyo")
    assert with_id(plan).id == without.id
    assert parse_plan(render_plan(plan), path="") == plan
    document = json.loads(zlib.decompress(render_plan(plan)))
    assert document.pop("time_zone") == "Asia/Tokyo"
    assert zlib.compress(canonical(document), 6) == render_plan(without)
    assert parse_plan(zlib.compress(canonical(document)), path="") == without


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(number=8),
        lambda d: d["ranges"]["size"].__setitem__(0, 1),
        lambda d: d["ranges"]["before"].__setitem__(0, 1),
        lambda d: d["positions"].__setitem__(0, 1),
        lambda d: d["seen_version"].__setitem__(0, 7),
        lambda d: d.update(uid="other"),
        lambda d: d.update(id="0" * 32),
        lambda d: d["logs"]["clicks"].__setitem__(0, "9"),
        lambda d: d.pop("shape"),
        lambda d: d["ranges"]["log"].__setitem__(0, 99),
        lambda d: d["ranges"]["size"].append(1),
        lambda d: d.update(kind="odd"),
        lambda d: d["logs"]["clicks"].__setitem__(0, "x"),
        lambda d: d.update(positions=None),
        lambda d: d.update(format="1"),
        lambda d: d["positions"].__setitem__(0, -5),
        lambda d: d["leaders"].clear(),
    ],
)
def test_a_tampered_plan_is_found(change: Callable[[dict[str, Any]], Any]) -> None:
    document = document_of(render_plan(plan_of(3)))
    change(document)
    with pytest.raises(LedgersDisagree) as caught:
        parse_plan(payload_of(document), path="/the/znode")
    assert caught.value.where["znode"] == "/the/znode"


def test_intervals_of_older_documents_have_no_reasons_for_missing_rows() -> None:
    document = document_of(render(LoadedIntervals(3, {LOG: (Interval(0, 10, 7, 1, 1, 1),)})))
    document["intervals"] = [[[0, 10, 7]]]
    found = parse(
        LoadedIntervals, zlib.compress(json.dumps(document).encode()), path="/p"
    ).intervals[LOG]
    assert found == (Interval(0, 10, 7),)
    assert found[0].unexplained == 3


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        render_plan(plan_of(3))[:-1],
        render_plan(plan_of(3))[:9],
        render_plan(plan_of(3)) + b"x",
        zlib.compress(b"[" * 100_000),
        zlib.compress(b"null"),
        zlib.compress(b'{"format":1e999}'),
        zlib.compress(b'{"format":' + b"9" * 5000 + b"}"),
        zlib.compress(b'{"format":NaN}'),
        zlib.compress(b"\xff\xfe"),
        payload_of({"format": FORMAT + 1, "whatever": "comes"}),
    ],
)
def test_payloads_that_are_cut_off_or_odd_or_newer_are_refused(payload: bytes) -> None:
    with pytest.raises(NeedsDecision):
        parse_plan(payload, path="/p")


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.ledger.documents.DOCUMENT_MAX_BYTES", 2**20)
    bomb = zlib.compress(b" " * (2**20 + 1), 9)
    with pytest.raises(LedgersDisagree, match="far too large"):
        parse_plan(bomb, path="/p")


def test_commit_metadata_has_the_plan_and_its_content() -> None:
    plan = plan_of(2)
    text = render_commit_metadata(plan, APP_ID)
    assert parse_commit_metadata(text, 17) == CommitMetadata(
        17, APP_ID, "feedbeef", 7, plan.id, document=render_plan(plan)
    )
    document = json.loads(text)
    assert document["previous"] == "p" * 32
    assert document["ranges"][0] == ["clicks", "0", 10_000_000_000, 10_000_001_000]
    assert document["positions"][1] == [
        "clicks",
        "1",
        plan.loaded_until[TopicPartition("clicks", 1)],
    ]


def test_large_commit_metadata_holds_the_plan_compressed() -> None:
    plan = plan_of(2000)
    text = render_commit_metadata(plan, APP_ID)
    assert len(text) < METADATA_FULL_BYTES
    assert parse_commit_metadata(text, 17) == CommitMetadata(
        17, APP_ID, "feedbeef", 7, plan.id, document=render_plan(plan)
    )
    document = json.loads(text)
    assert "positions" not in document
    assert parse_plan(base64.b85decode(document["plan_zlib"]), path="stamp") == plan


def test_metadata_beyond_its_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.ledger.plan_document.METADATA_MAX_BYTES", 10_000)
    with pytest.raises(SettingsError, match="2,000 partitions") as caught:
        render_commit_metadata(plan_of(2000), APP_ID)
    assert caught.value.where["key"] == "source.topics"


def test_no_plan_is_written_that_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(zlib.decompress(render_plan(plan_of(2000))))
    monkeypatch.setattr("etl.ledger.documents.WRITTEN_MAX_BYTES", size)
    assert parse_plan(render_plan(plan_of(2000)), path="/p") == plan_of(2000)
    monkeypatch.setattr("etl.ledger.documents.WRITTEN_MAX_BYTES", size - 1)
    with pytest.raises(SettingsError, match="2,000 partitions") as caught:
        render_plan(plan_of(2000))
    assert caught.value.where["key"] == "source.topics"


def test_a_plan_with_too_many_ranges_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.ledger.plan_document.RANGES_MAX", 3)
    render_plan(plan_of(3))
    with pytest.raises(SettingsError, match="4 ranges, more than 3") as caught:
        render_plan(plan_of(4))
    assert caught.value.action and "limits.max_bytes_per_plan" in caught.value.action


def test_the_record_of_the_most_ranges_is_written_whole_however_large_its_numbers_are() -> None:
    longest, epoch = len(str(2**63)), len(str(2**31))
    one = 5 * (longest + 1) + epoch + 1 + len("[],") + len("false,")
    assert RANGES_MAX * one < WRITTEN_MAX_BYTES


@pytest.mark.parametrize(
    ("short_of", "kept"),
    [(0, [3, 0, 1, 2]), (1, [0, 0, 1, 2]), (4 * 40, [0, 0, 1, 0]), (6 * 40, [0, 0, 0, 0])],
)
def test_a_large_result_leaves_out_gaps_of_the_worst_ranges(
    monkeypatch: pytest.MonkeyPatch, short_of: int, kept: list[int]
) -> None:
    results = tuple(
        RangeResult(5, 100, missing_offsets=n, gaps=tuple((2 * i, 2 * i + 1) for i in range(n)))
        for n in (3, 0, 1, 2)
    )
    applied = CommitResult(1, "p", 2, "t", results)
    without_gaps = replace(applied, results=tuple(replace(r, gaps=()) for r in results))
    bare = len(zlib.decompress(render(without_gaps)))
    most = bare + 3 * len("false") - 3 * len("true") + 6 * 40 - short_of
    monkeypatch.setattr("etl.ledger.documents.WRITTEN_MAX_BYTES", most)
    found = parse(CommitResult, render(applied), path="/p").results
    assert [len(r.gaps) for r in found] == kept
    assert [r.gaps_complete for r in found] == [len(r.gaps) == r.missing_offsets for r in found]
    assert [replace(r, gaps=(), gaps_complete=True) for r in found] == [
        replace(r, gaps=()) for r in results
    ]


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"app":"other"}', '{"app":"offset-range-etl"}', "[" * 100_000]
)
def test_metadata_without_our_name_is_none_of_ours(text: str) -> None:
    assert parse_commit_metadata(text, 1) is None


def test_a_partition_takes_less_than_twenty_bytes_in_each_document() -> None:
    count = 4_000
    plan = replace(plan_without_id(count), id="0" * 32)
    stamp = render_commit_metadata(plan, APP_ID)
    assert len(stamp) < 20 * count
    assert len(base64.b85decode(json.loads(stamp)["plan_zlib"])) < 12 * count
    results = tuple(RangeResult(rows=r.size, fetched_bytes=r.size * 113) for r in plan.ranges)
    assert len(render(CommitResult(7, plan.id, 8, "t", results))) < 20 * count
