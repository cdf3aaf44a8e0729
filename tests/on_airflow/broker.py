"""`python -m tests.on_airflow.broker FOLDER`: a real cluster for tests in Airflow's environment,
without a Kafka client.

It runs in the environment with Spark. Each line of standard input is one request in JSON, each line
of standard output its answer:

    {"do": "topic", "name": ..., "partitions": 4} creates a topic
    {"do": "produce", "name": ..., "times": [[0, ms], ...]} a record for each partition and time
    {"do": "flow", "name": ..., "partitions": 4, "every_s": 0.05} records of now until `still`
    {"do": "still"} the number of these records
    {"do": "records", "name": ...} [partition, offset, value] of each, by Kafka's client
    {"do": "rows", "table": ...} the same by delta-rs
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.spark_launch import SHORT_RUN, jar_settings, set_spark_environment


class Broker:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self._numbers, self._is_still = itertools.count(), threading.Event()
        self._flowing: threading.Thread | None = None
        self._flowed = 0

    def topic(self, name: str, partitions: int) -> None:
        """Records stay, however old their times are."""
        self.cluster.create_topic(name, partitions, config={"retention.ms": "-1"})

    def produce(self, name: str, times: list[list[int]]) -> None:
        producer = KafkaProducer(bootstrap_servers=self.cluster.bootstrap)
        for partition, ms in times:
            producer.send(
                name, value=b"%d" % next(self._numbers), partition=partition, timestamp_ms=ms
            )
        producer.close()

    def flow(self, name: str, partitions: int, every_s: float) -> None:
        def produce() -> None:
            producer = KafkaProducer(bootstrap_servers=self.cluster.bootstrap)
            while not self._is_still.wait(every_s):
                value, partition = b"%d" % next(self._numbers), self._flowed % partitions
                producer.send(
                    name, value=value, partition=partition, timestamp_ms=round(time.time() * 1000)
                )
                self._flowed += 1
            producer.close()

        self._flowing = threading.Thread(target=produce)
        self._flowing.start()

    def still(self) -> int:
        self._is_still.set()
        if self._flowing:
            self._flowing.join()
        return self._flowed

    def records(self, name: str) -> list[list[Any]]:
        consumer = KafkaConsumer(bootstrap_servers=self.cluster.bootstrap, enable_auto_commit=False)
        partitions = [
            TopicPartition(name, number) for number in consumer.partitions_for_topic(name)
        ]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        found: list[list[Any]] = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(1000).values():
                found += [
                    [record.partition, record.offset, record.value.decode()] for record in records
                ]
        consumer.close()
        return sorted(found)

    def rows(self, table: str) -> list[list[Any]]:
        """All of the table; none where there is none yet."""
        if not Path(table, "_delta_log").exists():
            return []
        rows = (
            DeltaTable(table).to_pyarrow_table(columns=["partition", "offset", "value"]).to_pylist()
        )
        return sorted([row["partition"], row["offset"], row["value"].decode()] for row in rows)


def main() -> int:
    set_spark_environment()
    with EmbeddedCluster(folder=Path(sys.argv[1])) as cluster:
        broker = Broker(cluster)
        print(
            json.dumps(
                {
                    "zookeeper": cluster.zookeeper_connect,
                    "bootstrap": cluster.bootstrap,
                    "spark": jar_settings("local[2]", SHORT_RUN),
                }
            ),
            flush=True,
        )
        try:
            for line in sys.stdin:
                request = json.loads(line)
                print(json.dumps(getattr(broker, request.pop("do"))(**request)), flush=True)
        finally:
            broker.still()
    return 0


if __name__ == "__main__":
    sys.exit(main())
