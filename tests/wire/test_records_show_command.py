"""The command `etl records show`: output, decoders, arguments, and its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from etl.commands.peek import FollowedPartition
from etl.streams.consumer import Consumer
from etl.streams.records import Record
from tests.builders import conf_in
from tests.command_result import CommandResult, refused, run_etl
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker

ROOT = Path(__file__).parents[2]
AT = "2023-11-14T22:13:20.000+00:00"


@pytest.fixture
def conf(broker: FakeBroker, tmp_path: Path) -> Path:
    return conf_in(tmp_path, broker.port)


def append(broker: FakeBroker, *records: Rec, **fields: object) -> None:
    batch = Batch(broker.log("clicks").log_end, records, **fields)  # type: ignore[arg-type]
    broker.append("clicks", 0, encode(batch))


def peek(conf: Path, *words: str) -> CommandResult:
    return run_etl("records", "show", str(conf), "-p", "clicks:0", *words)


def fields(result: CommandResult) -> list[list[str]]:
    return [line.split("\t") for line in result.out.splitlines()]


def test_a_line_has_offset_time_key_value_and_headers(broker: FakeBroker, conf: Path) -> None:
    append(
        broker,
        Rec(0, b'{"a": 1}', b"key", ((b"trace", b"abc"), (b"none", None))),
        Rec(1, None),
        Rec(2, "\u4e2d\u6587".encode()),
    )
    result = peek(conf)
    assert result.code == 0
    assert fields(result) == [
        ["0", AT, "key", '{"a": 1}', "trace=abc, none=-"],
        ["1", AT, "-", "-", ""],
        ["2", AT, "-", "\u4e2d\u6587", ""],
    ]
    first, last = result.err.splitlines()
    assert first == "etl: clicks 0 has offsets 0 to 3; from 0:"
    assert last == "etl: 3 records; the end of the log; --from 3 continues"


def test_ten_records_are_shown_by_default(broker: FakeBroker, conf: Path) -> None:
    append(broker, *(Rec(delta, b"%d" % delta) for delta in range(30)))
    assert len(fields(peek(conf))) == 10
    assert len(fields(peek(conf, "-n", "25"))) == 25
    two = peek(conf, "--from", "20", "-n", "2")
    assert "2 records; the requested number; --from 22 continues" in two.err


def test_bytes_of_others_move_no_cursor_and_end_no_line(broker: FakeBroker, conf: Path) -> None:
    append(
        broker,
        Rec(0, b"a\tb\nc\x1b[31m\x07", b"caf\xe9"),
        Rec(1, "\u202egnp".encode(), headers=((b"h\n", b"\x00"),)),
    )
    assert fields(peek(conf)) == [
        ["0", AT, "caf\\xe9", "a\\tb\\nc\\x1b[31m\\x07", ""],
        ["1", AT, "-", "\\u202egnp", "h\\n=\\x00"],
    ]


def test_long_values_are_cut_in_lines_only(broker: FakeBroker, conf: Path) -> None:
    append(broker, Rec(0, b"x" * 5000))
    assert fields(peek(conf))[0][3] == "x" * 300 + "... (5,000 bytes)"
    assert fields(peek(conf, "--no-truncate"))[0][3] == "x" * 5000
    assert peek(conf, "--json").document["records"][0]["value"] == "x" * 5000


def test_a_program_gets_one_document(broker: FakeBroker, conf: Path) -> None:
    append(
        broker,
        Rec(0, b"v", b"k", ((b"h", b"1"), (b"none", None))),
        Rec(1, None),
        Rec(2, b"\xff"),
        append_time=True,
    )
    result = peek(conf, "--json", "--from", "0")
    document = result.document
    records = document.pop("records")
    assert document == {
        "command": "records show",
        "pipeline": "clicks",
        "topic": "clicks",
        "partition": 0,
        "log_start": 0,
        "end": 3,
        "from": 0,
        "shown": 3,
        "next": 3,
        "ended": "the end of the log",
    }
    assert records[0] == {
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20.500+00:00",
        "timestamp_ms": 1_700_000_000_500,
        "timestamp_type": "append",
        "key": "k",
        "value": "v",
        "headers": [{"key": "h", "value": "1"}, {"key": "none", "value": None}],
    }
    assert [records[1]["value"], records[2]["value"]["hex"]] == [None, "ff"]
    assert "UnicodeDecodeError" in records[2]["value"]["not_decoded"]
    assert (result.code, result.err, len(result.out.splitlines())) == (0, "", 5)
    assert peek(conf, "--json", "--from", "3").document["records"] == []


@pytest.mark.parametrize(
    "decoder, value, line, document",
    [
        ("hex", b"\x00\xff", "00ff", "00ff"),
        ("base64", b"\x00\xff", "AP8=", "AP8="),
        ("json", b'{"b": [1, "\xc3\xa9"]}', '{"b": [1, "\u00e9"]}', {"b": [1, "\u00e9"]}),
        ("int", b"\xff\xff\xff\xfe", "-2", -2),
        ("int", (2**62).to_bytes(8, "big"), str(2**62), 2**62),
        ("tests.wire.test_records_show_command:reversed_text", b"abc", "cba", "cba"),
        ("tests.wire.test_records_show_command:length_of", b"abc", '{"length": 3}', {"length": 3}),
    ],
)
def test_a_decoder_is_chosen_by_its_name(
    broker: FakeBroker, conf: Path, decoder: str, value: bytes, line: str, document: object
) -> None:
    append(broker, Rec(0, value, value))
    formats = ("--value-format", decoder, "--key-format", decoder)
    assert fields(peek(conf, *formats))[0][2:4] == [line, line]
    [record] = peek(conf, *formats, "--json").document["records"]
    assert (record["key"], record["value"]) == (document, document)


@pytest.mark.parametrize(
    "decoder, value",
    [
        ("json", b"{"),
        ("json", b"NaN"),
        ("json", b"[" * 100_000),
        ("int", b"123"),
        ("tests.wire.test_records_show_command:raises", b"x"),
        ("tests.wire.test_records_show_command:circular", b"x"),
        ("tests.wire.test_records_show_command:bytes_as_keys", b"x"),
    ],
)
def test_what_a_decoder_cannot_read_is_shown_all_the_same(
    broker: FakeBroker, conf: Path, decoder: str, value: bytes
) -> None:
    append(broker, Rec(0, value))
    line = peek(conf, "--value-format", decoder)
    document = peek(conf, "--value-format", decoder, "--json")
    assert (line.code, document.code) == (0, 0)
    assert fields(line)[0][3].startswith(value[:300].decode())
    shown = document.document["records"][0]["value"]
    assert bytes.fromhex(shown["hex"]) == value and shown["not_decoded"]


def reversed_text(content: bytes) -> str:
    return content.decode()[::-1]


def length_of(content: bytes) -> dict[str, int]:
    return {"length": len(content)}


def raises(content: bytes) -> None:
    raise KeyError("nothing")


def circular(content: bytes) -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


def bytes_as_keys(content: bytes) -> dict[bytes, int]:
    return {content: 1}


# Wrong words


@pytest.mark.parametrize(
    "words, value",
    [
        (
            ("--from", "yesterday"),
            ["--from 'yesterday' is not a position:", "an offset, earliest, latest, or a time"],
        ),
        (("--from", "2026-01-31T00:00:00"), ["has no UTC offset"]),
        (("--from", "-5"), ["--from '-5' is not a position:"]),
        (("--from", "7"), ["Offset 7 is not in the log, which has 0 to 1"]),
        (
            ("--value-format", "avro"),
            [
                "There is no decoder 'avro'",
                "one of text, json, hex, base64, int, or package.module:function",
            ],
        ),
        (("--value-format", "no_such_module:decode"), ["cannot be loaded", "PYTHONPATH"]),
        (("--value-format", "tests.wire.test_records_show_command:ROOT"), ["is not a function"]),
        (("-n", "0"), ["greater than or equal to 1"]),
        (("--timeout", "0"), ["--timeout is not a duration"]),
        (("--from", "0", "--last", "1"), ["--from and --last both set the start"]),
        (("--from", "earliest", "--last", "1"), ["--from and --last both set the start"]),
    ],
)
def test_wrong_arguments_are_reported_before_any_record_is_shown(
    broker: FakeBroker, conf: Path, words: tuple[str, ...], value: list[str]
) -> None:
    append(broker, Rec(0, b"v"))
    refused(peek(conf, *words, "--json"), 2, *value)


def test_damage_ends_the_document_with_the_error_in_it(broker: FakeBroker, conf: Path) -> None:
    append(broker, Rec(0, b"good"))
    broken = bytearray(encode(Batch(1, [Rec(0, b"broken")])))
    broken[-1] ^= 1
    broker.append("clicks", 0, bytes(broken))
    result = peek(conf, "--json")
    document = result.document
    assert result.code == 5
    assert len(document["records"]) == 1
    assert document["error"]["error"] == "CorruptData"
    assert document["ended"] is None
    assert "CRC" in result.err
    assert "etl: 1 record, until the error below\netl: CRC-32C" in peek(conf).err


# How it stops


def started(conf: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "etl", "records", "show", str(conf), "-p", "clicks:0", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_ends_following_and_closes_the_document(broker: FakeBroker, conf: Path) -> None:
    append(broker, Rec(0, b"v"))
    with started(conf, "--follow", "--json") as peeking:
        assert peeking.stdout and peeking.stderr
        head, first = peeking.stdout.readline(), peeking.stdout.readline()
        peeking.send_signal(signal.SIGINT)
        document = json.loads(head + first + peeking.stdout.read())
        assert peeking.wait(30) == 130
        assert document["ended"] == "stopped"
        assert document["shown"] == 1
        assert document["next"] == 1
        assert peeking.stderr.read() == "etl: Stopped. Nothing was changed\n"


def interrupted_in_wait() -> None:
    """What Ctrl-C does in the middle of `Condition.wait`, which has released its lock then."""
    condition = threading.Condition()
    with condition:
        condition.release()
        raise KeyboardInterrupt


def test_ctrl_c_that_makes_a_lock_fail_is_a_stop_and_closes_the_document(
    broker: FakeBroker, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(broker, Rec(0, b"v"))
    polled = FollowedPartition._poll

    def poll(self: FollowedPartition, consumer: Consumer) -> list[Record]:
        if self.given:
            interrupted_in_wait()
        return polled(self, consumer)

    monkeypatch.setattr(FollowedPartition, "_poll", poll)
    result = peek(conf, "--follow", "--json")
    assert result.code == 130
    assert (result.document["ended"], result.document["shown"]) == ("stopped", 1)
    assert result.err == "etl: Stopped. Nothing was changed\n"


def test_a_closed_pipe_ends_it_without_an_error(broker: FakeBroker, conf: Path) -> None:
    append(broker, *(Rec(delta, b"v" * 1000) for delta in range(3000)))
    with started(conf, "-n", "3000", "--no-truncate") as peeking:
        assert peeking.stdout and peeking.stderr
        assert peeking.stdout.readline().startswith("0\t")
        peeking.stdout.close()
        assert peeking.wait(60) == 141
        assert peeking.stderr.read() == "etl: clicks 0 has offsets 0 to 3000; from 0:\n"
