"""Registrations of consumers in ZooKeeper, and their filters."""

from __future__ import annotations

import pytest

from etl.errors import SettingsError
from etl.ledger.owner_nodes import consumer_id, consumer_of, generated_name, thread_id
from etl.ledger.registrations import (
    FilteredTopics,
    FixedTopics,
    Registration,
    parse_registration,
    render_registration,
)
from etl.ledger.topic_filters import FilterKind, TopicFilter, cleaned, java_pattern
from etl.model.partitions import BrokerFamily
from tests.groups.golden import golden
from tests.groups.random_patterns import NAMES, in_python, pattern_of

TOPICS = ("clicks", "clicks-eu", "orders", "__consumer_offsets")
STATIC = b'{"version":1,"subscription":{"clicks":2},"pattern":"static","timestamp":"1446000000000"}'
WHITE = rb'{"version":1,"subscription":{"clicks.*|\\d\/":4},"pattern":"white_list","timestamp":"1446000000000"}'
BLACK = b'{"version":1,"subscription":{"clicks.*":4},"pattern":"black_list","timestamp":"1446000000000"}'


@pytest.mark.parametrize(
    ("payload", "dialect", "threads"),
    [
        (b'{ "clicks": 2,"orders": 1 }', BrokerFamily.JAFKA, {"clicks": 2, "orders": 1}),
        (b'{"clicks":2,"gone":1}', BrokerFamily.JAFKA, {"clicks": 2, "gone": 1}),
        (b'{"clicks":0}', BrokerFamily.JAFKA, {}),
        (b'{"version":3}', BrokerFamily.JAFKA, {"version": 3}),
        (b"*4*clicks.*", BrokerFamily.JAFKA, {"clicks": 4, "clicks-eu": 4}),
        (b"!4!clicks.*", BrokerFamily.JAFKA, {"orders": 4}),
        (STATIC, BrokerFamily.KAFKA, {"clicks": 2}),
        (WHITE, BrokerFamily.KAFKA, {"clicks": 4, "clicks-eu": 4}),
        (BLACK, BrokerFamily.KAFKA, {"orders": 4}),
        (b'{"subscription":{},"pattern":"white_list"}', BrokerFamily.KAFKA, {}),
        (
            b'{"timestamp":"5","subscription":{"clicks":1},"pattern":"any other '
            b'word","version":9,"more":[]}',
            BrokerFamily.KAFKA,
            {"clicks": 1},
        ),
        (
            b'{"subscription":{"orders,clicks":1},"pattern":"white_list"}',
            BrokerFamily.KAFKA,
            {"clicks": 1, "orders": 1},
        ),
    ],
)
def test_every_form_is_read(payload: bytes, dialect: BrokerFamily, threads: dict[str, int]) -> None:
    found = parse_registration(payload, path="/p")
    assert (found.dialect, found.threads(TOPICS)) == (dialect, threads)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"7",
        b"null",
        b"{",
        b'{"clicks":"2"}',
        b'{"clicks":2.0}',
        b'{"clicks":true}',
        b'{"clicks":-1}',
        b'{"clicks":1000000}',
        b"\xff",
        b'{"subscription":{"clicks":1}}',
        b'{"subscription":{"clicks":1},"pattern":1}',
        b'{"subscription":{"clicks":0},"pattern":"static"}',
        b'{"subscription":{"a":1,"b":1},"pattern":"white_list"}',
        b"*0*a",
        b"*x*a",
        b"*4!a",
        b"\xac\xed\0\5t\0\1{}",
        b'{"subscription":[],"pattern":"static"}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_registration_is_an_error_that_names_the_znode(payload: bytes) -> None:
    with pytest.raises(
        SettingsError, match="The registration of a consumer of the group is invalid"
    ) as failed:
        parse_registration(payload, path="/consumers/g/ids/c")
    assert failed.value.where == {"znode": "/consumers/g/ids/c"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (r"(a)\\1", r"\\1"),
        ("a*+b", "possessive"),
        ("(?>a)b", r"\(\?>"),
        ("[a&&b]", "&&"),
        ("(?x)a", "the flag x"),
        ("(", "not closed"),
        ("a{1,3}", "{ after a character or group"),
        (r"(?i)\\p{Lower}", "two ways"),
        (r"\\p{IsLatin}", "IsLatin"),
        ("(?<=a|bc)d", "fixed-width"),
        (r"a(?<=_\\s*)", "fixed-width"),
        ("a{0}", r"quantifier \{0\}"),
    ],
)
def test_a_filter_without_a_certain_meaning_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=f"not supported: .*{named}") as failed:
        parse_registration(
            f'{{"subscription":{{"{text}":1}},"pattern":"white_list"}}'.encode(),
            path="/consumers/g/ids/c",
        )
    assert (failed.value.exit_code, failed.value.where) == (2, {"znode": "/consumers/g/ids/c"})


@pytest.mark.parametrize(
    ("reads", "dialect", "payload"),
    [
        (FixedTopics({"b": 1, "a": 2}), BrokerFamily.JAFKA, b'{"a":2,"b":1}'),
        (FixedTopics({"clicks": 2}), BrokerFamily.KAFKA, STATIC),
        (
            FilteredTopics(TopicFilter(FilterKind.WHITE_LIST, r"clicks.*|\d/"), 4),
            BrokerFamily.KAFKA,
            WHITE,
        ),
        (
            FilteredTopics(TopicFilter(FilterKind.BLACK_LIST, "clicks.*"), 4),
            BrokerFamily.KAFKA,
            BLACK,
        ),
    ],
)
def test_what_we_write_is_what_a_consumer_of_the_family_writes(
    reads: FixedTopics | FilteredTopics, dialect: BrokerFamily, payload: bytes
) -> None:
    registration = Registration(dialect, reads)
    assert render_registration(registration, now_ms=1_446_000_000_000) == payload
    assert parse_registration(payload, path="/p") == registration


def test_a_filter_cannot_be_written_so_that_jafka_reads_it() -> None:
    reads = FilteredTopics(TopicFilter(FilterKind.WHITE_LIST, "a"), 1)
    with pytest.raises(ValueError, match="by name"):
        render_registration(Registration(BrokerFamily.JAFKA, reads), now_ms=0)


def test_consumers_threads_and_owners_have_the_names_that_the_originals_give_them() -> None:
    consumer = consumer_id(
        "my-group", generated_name("vm-7", 1_446_000_000_000, 0x59986C35AAAA << 80)
    )
    assert consumer == "my-group_vm-7-1446000000000-59986c35"
    assert thread_id(consumer, 10) == f"{consumer}-10"
    assert consumer_of(thread_id(consumer, 10)) == consumer


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (" a, b\n", "a|b"),
        ("\"'a'\"", "a"),
        ("' a '", "a"),
        ('a"b', 'a"b'),
        ("\x00a", "a"),
        ('"a"\u2028', "a\u2028"),
        ("", ""),
    ],
)
def test_a_filter_is_cleaned_as_a_consumer_cleans_it(text: str, clean: str) -> None:
    assert cleaned(text) == clean


# Filters as Java itself answered; its answers are in `tests/groups/golden.json`


def test_random_patterns_match_what_they_match_in_java_or_are_refused() -> None:
    understood = 0
    for seed, theirs in enumerate(golden()["matches"].split()):
        found = in_python(pattern_of(seed))
        if found is not None:
            understood += 1
            assert theirs != "-" and int(found, 2) == int(theirs, 16), (pattern_of(seed), NAMES)
    assert understood > 500


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        (
            r"(?!orders).*\d",
            {"t1", "t10", "t22", "0", "007", "page.views-2015_10", "b1", "A1.b2-C3_d4"},
        ),
        (r"o(?i)RDERS|A", {"orders", "a"}),
        (r"\Qa.b\E(\.c)?", {"a.b", "a.b.c"}),
        (r"\p{Upper}{3}|[a-c&]{2}", {"ABC", "ab"}),
        (r"(?<num>t\d)\w?", {"t1", "t10", "t22"}),
        (r".*(?<!b)c|\b_\b", {"c", "_", "a.b.c"}),
        (r"t\d{1,2}|(ab){2,}|-{0,1}|z{1,3}?", {"t1", "t10", "t22", "abab", "-", "zz"}),
    ],
)
def test_what_filters_use_is_translated(pattern: str, matched: set[str]) -> None:
    assert {name for name in NAMES if java_pattern(pattern).fullmatch(name)} == matched
