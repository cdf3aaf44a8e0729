"""Records that come all the time, from a producer and a thread of their own."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

from tests.brokers.foreign import JafkaClients, JavaProducer
from tests.brokers.stage import PARTITIONS, JafkaStage, KafkaStage

_AT_ONCE = 3
_EVERY_S = 0.05


class Flow:
    """`with Flow(stage, topic, folder)`: a few unique records for each partition in turn."""

    def __init__(self, stage: JafkaStage | KafkaStage, topic: str, folder: Path) -> None:
        self._stage, self._topic, self._folder = stage, topic, folder
        self._end = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name=f"flow into {topic}", daemon=True)
        self.sent = 0

    def __enter__(self) -> Flow:
        self._folder.mkdir()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed

    def _write(self) -> None:
        try:
            with ExitStack() as running:
                self._write_until_the_end(running)
        except BaseException as failed:  # raised where the block ends
            self._failed = failed

    def _write_until_the_end(self, running: ExitStack) -> None:
        cluster = self._stage.cluster
        if isinstance(self._stage, JafkaStage):
            jafka = running.enter_context(JafkaClients(cluster, self._folder))
        else:
            java = running.enter_context(JavaProducer(cluster, self._stage.version, self._folder))
        while not self._end.wait(_EVERY_S):
            partition, values = (
                self.sent % PARTITIONS,
                [b"flow-%d" % number for number in range(self.sent, self.sent + _AT_ONCE)],
            )
            if isinstance(self._stage, JafkaStage):
                jafka.send(cluster.brokers[partition % 2], self._topic, partition // 2, values)
            else:
                java.send(self._topic, partition, [(None, value) for value in values])
            self.sent += _AT_ONCE
