"""`python -m tests.brokers.golden [RELEASE ...]`: take the golden bytes of tests/golden anew, from
running brokers.

For each producer and codec of the release: a topic in which that producer wrote a few records, the
records field of a Fetch answer as it came over a plain socket, in the newest version up to 4 that
the release speaks, and what the release's own consumer reads there. Nothing of the package takes
part but the embedded servers. Times and CRCs are of the day they were taken on.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from etl.testkit.brokers import RELEASES, Kafka
from etl.testkit.server_process import HOST, wait_until
from tests.brokers.foreign import KeyValue
from tests.brokers.stage import JafkaStage, KafkaStage, begin
from tests.brokers.writing import ODD

FOLDER = Path(__file__).parents[1] / "golden"
_FETCH_VERSIONS: dict[tuple[int, ...], int] = {(0, 8): 0, (0, 9): 1, (0, 10): 2}
_ENOUGH = 1 << 20
_ALIKE: list[KeyValue] = [(None, b"alike, alike, alike %d" % number) for number in range(3)]


def take(version: str, folder: Path) -> dict[str, Any]:
    with ExitStack() as running:
        stage = begin(version, folder, running)
        return {
            "release": version,
            "how": "python -m tests.brokers.golden",
            "answers": [_answer(stage, name) for name in stage.writers],
        }


def _answer(stage: KafkaStage | JafkaStage, writer: str) -> dict[str, Any]:
    topic, broker = stage.new_topic(), stage.cluster.brokers[0]
    for records in ([(None, b"hello")], ODD, _ALIKE):
        if stage.has_keys:
            kept = records
        else:
            kept = [(None, value) for _, value in records if value is not None]
        stage.writers[writer](topic, 0, kept)
    read = [seen for seen in stage.read(topic) if seen.partition == 0]
    assert wait_until(lambda: bool(_fetched(stage, broker, topic)), 10)
    return {
        "producer": writer,
        "fetch_version": _version(stage),
        "records": _fetched(stage, broker, topic).hex(),
        "read": [[seen.offset, seen.index, _hex(seen.key), _hex(seen.value)] for seen in read],
    }


def _version(stage: KafkaStage | JafkaStage) -> int | None:
    return None if isinstance(stage, JafkaStage) else _FETCH_VERSIONS.get(stage.release[:2], 4)


def _fetched(stage: KafkaStage | JafkaStage, broker: Kafka, topic: str) -> bytes:
    """The records of one Fetch answer from offset 0 of partition 0."""
    name, version = struct.pack(">h", len(topic)) + topic.encode(), _version(stage)
    if version is None:
        answer = _send(
            broker.port, struct.pack(">h", 1) + name + struct.pack(">iqi", 0, 0, _ENOUGH)
        )
        assert answer[:2] == b"\0\0"
        return answer[2:]
    more = struct.pack(">ib", _ENOUGH, 0) if version >= 4 else b""
    wanted = struct.pack(">i", 1) + name + struct.pack(">iiqi", 1, 0, 0, _ENOUGH)
    head = struct.pack(">hhih", 1, version, 0, 0) + struct.pack(">iii", -1, 500, 1)
    answer = _send(broker.port, head + more + wanted)
    at = (
        4 + (4 if version else 0) + 4 + len(name) + 4
    )  # correlation, throttle, topics, name, partitions
    _, error, _ = struct.unpack_from(">ihq", answer, at)
    assert error == 0
    at += 14
    if version >= 4:
        [aborted] = struct.unpack_from(">i", answer, at + 8)
        at += 12 + 16 * max(aborted, 0)
    [size] = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]


def _send(port: int, request: bytes) -> bytes:
    with (
        socket.create_connection((HOST, port), timeout=10) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(struct.pack(">i", len(request)) + request)
        return answer.read(*struct.unpack(">i", answer.read(4)))


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for version in sys.argv[1:] or RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            document = take(version, Path(folder))
        answers = ",\n".join(map(json.dumps, document.pop("answers")))
        (FOLDER / f"{version}.json").write_text(
            json.dumps({**document, "answers": []}).removesuffix("]}") + f"\n{answers}\n]}}\n"
        )
        print(version, len(document["answers"]), flush=True)


if __name__ == "__main__":
    main()
