"""The sentences of the contract against a real broker, and what only a real one can show."""

from __future__ import annotations

import pytest
from kafka import KafkaProducer

from etl.model.partitions import Isolation, TopicPartition
from etl.model.plans import OffsetRange, RangeResult
from etl.reader.fetch import read_ranges
from etl.reader.fetch_options import FetchOptions
from etl.testkit.cluster import EmbeddedCluster
from tests.conftest import TopicFactory
from tests.fakes.batches import Batch, Codec, Rec, compress, encode, record_bytes
from tests.fakes.contract import BrokerContract, Served


@pytest.fixture(scope="module")
def served(cluster: EmbeddedCluster, topic: TopicFactory) -> Served:
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    return Served(host, int(port), topic)


class TestRealBroker(BrokerContract):
    @pytest.mark.parametrize("codec", list(Codec))
    def test_messages_of_every_codec_are_read_to_the_row(
        self, served: Served, codec: Codec
    ) -> None:
        name = served.make_topic(2)
        with served.consumer() as consumer:
            for number in range(20):
                first, headers = 100 * (number // 2), ((b"h", b"%d" % number),)
                records = [
                    Rec(delta, b"value-%d" % (first + delta), b"key-%d" % delta, headers)
                    for delta in range(100)
                ]
                consumer.produce(name, number % 2, encode(Batch(0, records, codec)))
        results: dict[int, RangeResult] = {}
        batches = read_ranges(
            [OffsetRange(TopicPartition(name, partition), 50, 950) for partition in range(2)],
            FetchOptions(
                isolation=Isolation.READ_COMMITTED,
                bootstrap=((served.host, served.port),),
                fetch_max_bytes=8000,
            ),
            on_result=results.__setitem__,
        )
        rows = {
            (row["partition"], row["offset"]): row
            for arrow_batch in batches
            for row in arrow_batch.to_pylist()
        }
        assert sorted(rows) == [
            (partition, offset) for partition in range(2) for offset in range(50, 950)
        ]
        for (partition, offset), row in rows.items():
            assert (row["key"], row["value"]) == (b"key-%d" % (offset % 100), b"value-%d" % offset)
            assert row["headers"] == [
                {"key": "h", "value": b"%d" % (2 * (offset // 100) + partition)}
            ]
        assert [results[index].rows for index in range(2)] == [900, 900]

    @pytest.mark.parametrize(
        ("codec", "after"),
        [
            (Codec.GZIP, bytes(20)),
            (Codec.SNAPPY, b"\0"),
            (Codec.LZ4, bytes(20)),
            (Codec.SNAPPY, None),
        ],
    )
    def test_what_the_broker_takes_as_compressed_is_read(
        self, served: Served, codec: Codec, after: bytes | None
    ) -> None:
        """The broker looks into what a producer sends with the code of its Java clients."""
        name = served.make_topic(1)
        records = [Rec(delta, b"value-%d" % delta) for delta in range(4)]
        plain = b"".join(map(record_bytes, records))
        if after:
            padded = compress(plain, codec) + after
        else:
            padded = compress(plain[:9], codec) + compress(plain[9:], codec)
        with served.consumer() as consumer:
            consumer.produce(name, 0, encode(Batch(0, records, codec, payload=padded)))
        values = _values(served, OffsetRange(TopicPartition(name, 0), 0, 4))
        assert values == [record.value for record in records]

    def test_aborted_transactions_are_left_out_under_read_committed_only(
        self, served: Served, cluster: EmbeddedCluster
    ) -> None:
        name = served.make_topic(1)
        with KafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id=f"for-{name}"
        ) as producer:
            producer.init_transactions()
            for value, finish in (
                (b"kept", producer.commit_transaction),
                (b"dropped", producer.abort_transaction),
                (b"kept too", producer.commit_transaction),
            ):
                producer.begin_transaction()
                producer.send(name, value).get(30)
                finish()
        wanted = OffsetRange(TopicPartition(name, 0), 0, 6)
        assert _values(served, wanted) == [b"kept", b"kept too"]
        everything = _values(served, wanted, Isolation.READ_UNCOMMITTED)
        assert everything == [b"kept", b"dropped", b"kept too"]


def _values(
    served: Served, wanted: OffsetRange, isolation: Isolation = Isolation.READ_COMMITTED
) -> list[bytes]:
    options = FetchOptions(isolation=isolation, bootstrap=((served.host, served.port),))
    batches = read_ranges([wanted], options, on_result=lambda index, result: None)
    return [value for batch in batches for value in batch.column("value").to_pylist()]
