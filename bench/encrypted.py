"""`make bench`: the cost of encryption for reading, compared with plain connections, and with
Python's own `ssl` that moves the same bytes and no more.

    PYTHONPATH=. python bench/encrypted.py [--mib N] [--rounds N]

The server is a separate process that has one answer of 16 MiB ready and increments its offsets, so
that it costs no more than sending; an embedded broker's Java manages a tenth of that with TLS.
`bytes`: a socket and `recv_into`, nothing else. `fetches`: answers as a task takes them. `rows`:
read by the loop of a task, as Arrow batches. In turn, in one process, on one connection each.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka.protocol.consumer import FetchRequest

from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import FetchTarget
from etl.model.partitions import Broker, Isolation, Leader, TopicPartition
from etl.model.plans import OffsetRange
from etl.model.security import OPEN, Security
from etl.reader.fetch import read_ranges
from etl.reader.fetch_options import FetchOptions
from etl.settings.load import security_of
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FETCH, FakeBroker
from tests.fakes.sockets import exactly
from tests.networks.certificates import Authority

LOG = TopicPartition("bench", 0)
OF_A_BATCH, BATCHES, VALUE_BYTES = 1000, 16, 1000
RECORDS = OF_A_BATCH * BATCHES
"""Of one answer."""
_RAW = b"\xff\xff\xff\xff"
"""In place of a request's size: send as many bytes as the next eight bytes contain, without Kafka's
protocol.
"""
MIB = 1 << 20
_FETCH_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class Measured:
    """One way of moving bytes: by the clock, and processor seconds of this process."""

    kind: str
    is_encrypted: bool
    mib: float
    seconds: float
    cpu_s: float

    @property
    def mib_s(self) -> float:
        return self.mib / self.seconds


# The process that answers


def answer_for_ever(port_file: str, cert: str, key: str) -> None:
    """Both ports, plain and encrypted; the file has their numbers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    broker = FakeBroker()
    batches = [
        encode(Batch(n * OF_A_BATCH, [Rec(i, bytes([n]) * VALUE_BYTES) for i in range(OF_A_BATCH)]))
        for n in range(BATCHES)
    ]
    broker.append(LOG.topic, LOG.partition, *batches)
    broker.log(LOG.topic).high_watermark = 1 << 40
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    part = Path(f"{port_file}.part")
    part.write_text(" ".join(str(one.getsockname()[1]) for one in listening))
    part.rename(port_file)
    for one, wrap in zip(
        listening,
        (lambda plain: plain, lambda plain: context.wrap_socket(plain, server_side=True)),
        strict=True,
    ):
        threading.Thread(target=_accept, args=(one, wrap, broker, batches), daemon=True).start()
    sys.stdin.read()


def _accept(
    listening: socket.socket,
    wrap: Callable[[socket.socket], socket.socket],
    broker: FakeBroker,
    batches: Sequence[bytes],
) -> None:
    """In parallel: a task keeps its connection for the next one, which must not wait for it."""
    while True:
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(
            target=_enter, args=(connection, wrap, broker, batches), daemon=True
        ).start()


def _enter(
    connection: socket.socket,
    wrap: Callable[[socket.socket], socket.socket],
    broker: FakeBroker,
    batches: Sequence[bytes],
) -> None:
    with contextlib.suppress(EOFError, OSError), wrap(connection) as entered:
        _serve(entered, broker, batches)


def _serve(connection: socket.socket, broker: FakeBroker, batches: Sequence[bytes]) -> None:
    ready, places = bytearray(), list[int]()
    while True:
        size = exactly(connection, 4)
        if size == _RAW:
            left, block = int.from_bytes(exactly(connection, 8), "big"), bytes(MIB)
            while left > 0:
                connection.sendall(block[:left])
                left -= len(block)
            continue
        request = exactly(connection, int.from_bytes(size, "big"))
        key, version = int.from_bytes(request[:2], "big"), int.from_bytes(request[2:4], "big")
        if key != FETCH:
            connection.sendall(broker._answer(key, version, request))
            continue
        if not ready:
            ready = bytearray(broker._answer(key, version, request))
            places = [ready.find(batch[8:80]) - 8 for batch in batches]
        offset = (
            FetchRequest.decode(request, version=version, header=True)
            .topics[0]
            .partitions[0]
            .fetch_offset
        )
        ready[4:8] = request[4:8]
        for n, place in enumerate(places):
            ready[place : place + 8] = (offset + n * OF_A_BATCH).to_bytes(8, "big")
        connection.sendall(ready)


# Those who ask


def moved_bytes(port: int, mib: int, context: ssl.SSLContext | None) -> float:
    """How many MiB came."""
    buffer = memoryview(bytearray(MIB))
    with socket.create_connection(("127.0.0.1", port)) as plain:
        connection = (
            plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1")
        )
        connection.sendall(_RAW + (mib * MIB).to_bytes(8, "big"))
        left = mib * MIB
        while left:
            left -= connection.recv_into(buffer)
        connection.close()
    return mib


def fetched(port: int, answers: int, security: Security) -> float:
    """The same of answers to fetches."""
    size = 0
    with SimpleConsumer("127.0.0.1", port, security=security) as consumer:
        for n in range(answers):
            answer = consumer.multifetch(
                [FetchTarget(LOG, n * RECORDS, _FETCH_BYTES)], max_bytes=_FETCH_BYTES
            )
            size += sum(len(one.records) for one in answer.partitions)
    return size / MIB


def made_rows(port: int, answers: int, security: Security) -> float:
    """The same of rows."""
    leader = Leader(Broker(1, "127.0.0.1", port), None)
    read = list[int]()
    for batch in read_ranges(
        [OffsetRange(LOG, 0, answers * RECORDS, leader=leader)],
        FetchOptions(
            isolation=Isolation.READ_UNCOMMITTED, security=security, fetch_max_bytes=_FETCH_BYTES
        ),
        on_result=lambda index, result: read.append(result.fetched_bytes or 0),
    ):
        del batch
    return sum(read) / MIB


def measured(mib: int, rounds: int) -> Iterator[Measured]:
    """Each kind in turn, so many times, encrypted and plain."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder), "authority")
        certificate = authority.signed("broker", "IP:127.0.0.1")
        context = ssl.create_default_context(cafile=str(authority.ca))
        security = security_of({"protocol": "SSL", "tls": {"ca_file": str(authority.ca)}})
        with _answering(Path(folder), certificate.cert, certificate.key) as (plain, encrypted):
            answers = max(1, mib // 16)
            ways: dict[str, Callable[[bool], float]] = {
                "bytes": lambda tls: moved_bytes(
                    encrypted if tls else plain, answers * 16, context if tls else None
                ),
                "fetches": lambda tls: fetched(
                    encrypted if tls else plain, answers, security if tls else OPEN
                ),
                "rows": lambda tls: made_rows(
                    encrypted if tls else plain, answers, security if tls else OPEN
                ),
            }
            made_rows(plain, 1, OPEN)  # code that is loaded and compiled once
            for _ in range(rounds):
                for kind, move in ways.items():
                    for tls in (False, True):
                        yield _timed(kind, tls, move)


@contextlib.contextmanager
def _answering(folder: Path, cert: Path, key: Path) -> Iterator[tuple[int, int]]:
    ports = folder / "ports"
    words = [
        sys.executable,
        "-c",
        "import sys; from bench.encrypted import answer_for_ever; answer_for_ever(*sys.argv[1:])",
    ]
    child: subprocess.Popen[Any] = subprocess.Popen(
        [*words, str(ports), str(cert), str(key)], stdin=subprocess.PIPE
    )
    try:
        while not ports.exists():
            assert child.poll() is None, "it ended"
            time.sleep(0.05)
        plain, encrypted = map(int, ports.read_text().split())
        yield plain, encrypted
    finally:
        child.kill()
        child.wait()


def _timed(kind: str, tls: bool, move: Callable[[bool], float]) -> Measured:
    used, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    mib = move(tls)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    return Measured(
        kind, tls, mib, seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    )


def main() -> None:
    """A table, and the ratio under test: fetches through TLS and Python's own `ssl`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found = list(measured(arguments.mib, arguments.rounds))
    speeds = dict[tuple[str, bool], float]()
    for kind, tls in dict.fromkeys((one.kind, one.is_encrypted) for one in found):
        own = [one for one in found if (one.kind, one.is_encrypted) == (kind, tls)]
        speeds[kind, tls] = statistics.median(one.mib_s for one in own)
        cpu = statistics.median(one.cpu_s / one.mib * 1024 for one in own)
        print(
            f"{kind:8} {'TLS' if tls else 'plain':6} {speeds[kind, tls]:8.0f} MiB/s "
            f"{cpu:8.2f} CPU s/GiB"
        )
    for kind in ("fetches", "rows"):
        print(
            f"{kind} through TLS: {speeds[kind, True] / speeds['bytes', True]:.2f} of "
            f"Python's own ssl"
        )


if __name__ == "__main__":
    main()
