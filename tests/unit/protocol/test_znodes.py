"""Znode paths and payloads: golden text, and None or a named error for junk."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etl.errors import BadOffset, LedgersDisagree
from etl.ledger.owner_nodes import DriverNode, parse_driver, render_driver
from etl.ledger.registrations import MAX_OFFSET, parse_offset, parse_uid, render_offset
from etl.ledger.znode_paths import GroupPaths, PipelinePaths
from etl.model.partitions import TopicPartition, parse_partition_key

LOG = TopicPartition("clicks", 3)
OLD_LOG = TopicPartition("clicks", 3, broker_id=0)
LOGS = st.builds(
    TopicPartition,
    st.just("clicks"),
    st.integers(0, 2**31 - 1),
    st.none() | st.integers(0, 2**31 - 1),
)


def test_the_groups_part_of_the_tree_is_the_one_old_consumers_use() -> None:
    paths = GroupPaths("etl-clicks")
    assert paths.consumer_ids == "/consumers/etl-clicks/ids"
    assert paths.offset(LOG) == "/consumers/etl-clicks/offsets/clicks/3"
    assert paths.offset(OLD_LOG) == "/consumers/etl-clicks/offsets/clicks/0-3"
    assert paths.offsets_of("clicks") == "/consumers/etl-clicks/offsets/clicks"
    assert paths.offsets == "/consumers/etl-clicks/offsets"
    assert paths.owner(OLD_LOG) == "/consumers/etl-clicks/owners/clicks/0-3"
    assert paths.owners_of("clicks") == "/consumers/etl-clicks/owners/clicks"
    assert paths.pipelines == "/consumers/etl-clicks/etl"


def test_the_pipelines_part_of_the_tree_lies_under_its_group() -> None:
    paths = PipelinePaths("g", "clicks")
    assert paths.root == "/consumers/g/etl/clicks"
    assert paths.drivers == "/consumers/g/etl/clicks/drivers"
    assert paths.backfill("old") == "/consumers/g/etl/clicks/backfills/old"
    assert paths.plan(7) == "/consumers/g/etl/clicks/plans/7"
    assert paths.applied(7) == "/consumers/g/etl/clicks/applied/7"
    assert paths.loaded == "/consumers/g/etl/clicks/coverage"
    assert paths.chunk("abc", 2) == "/consumers/g/etl/clicks/chunks/abc/2"
    assert paths.chunks("abc") == "/consumers/g/etl/clicks/chunks/abc"


@given(LOGS)
def test_a_key_names_the_log_it_was_made_from(partition: TopicPartition) -> None:
    assert parse_partition_key("clicks", partition.key) == partition


@given(st.text(max_size=12))
@example("03")
@example("-3")
@example("0-")
@example("0-1-2")
@example("٣")
@example("9" * 5000)
@example("")
def test_only_the_one_spelling_of_a_key_names_a_log(key: str) -> None:
    found = parse_partition_key("clicks", key)
    assert found is None or found.key == key


@pytest.mark.parametrize(
    ("payload", "offset"), [(b"0", 0), (b"17", 17), (b"9223372036854775807", MAX_OFFSET)]
)
def test_an_offset_is_decimal_text(payload: bytes, offset: int) -> None:
    assert parse_offset(payload, path="/p", partition=LOG) == offset
    assert render_offset(offset) == payload


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"-1",
        b"+1",
        b" 1",
        b"1\n",
        b"1.0",
        b"0x1",
        b"1_000",
        b"9223372036854775808",
        b"9" * 5000,
        b"null",
        "١".encode(),
        b"\xb2",
    ],
)
def test_text_that_is_no_offset_is_refused_with_its_znode(payload: bytes) -> None:
    with pytest.raises(BadOffset) as caught:
        parse_offset(payload, path="/consumers/g/offsets/clicks/3", partition=LOG)
    assert caught.value.where == {
        "topic": "clicks",
        "partition": 3,
        "znode": "/consumers/g/offsets/clicks/3",
    }


DRIVERS = st.builds(
    DriverNode,
    st.text(),
    st.integers(1, 2**31 - 1),
    st.none() | st.text(),
    st.text(),
    st.none() | st.text(),
)


@given(DRIVERS)
def test_a_driver_comes_back_from_its_znode(driver: DriverNode) -> None:
    assert parse_driver(render_driver(driver)) == driver


@pytest.mark.parametrize("pid", [0, -1, 2**31, 10**400, 1e999, None, "x", []])
def test_a_driver_without_a_pid_of_this_system_is_unknown(pid: object) -> None:
    assert (
        parse_driver(json.dumps({"host": "h", "pid": pid, "started": None, "run_id": "r"}).encode())
        is None
    )


@pytest.mark.parametrize(
    ("payload", "uid"), [(b"", None), (b"feedbeef", "feedbeef"), (b"0" * 64, "0" * 64)]
)
def test_a_uid_is_letters_and_digits_or_a_bare_parent(payload: bytes, uid: str | None) -> None:
    assert parse_uid(payload, path="/p") == uid


@pytest.mark.parametrize("payload", [b"a b", b"\xe9", b"0" * 65, b"{}", b"a\n"])
def test_a_uid_that_is_not_ours_is_refused(payload: bytes) -> None:
    with pytest.raises(LedgersDisagree) as caught:
        parse_uid(payload, path="/consumers/g/etl/p")
    assert caught.value.where["znode"] == "/consumers/g/etl/p"
