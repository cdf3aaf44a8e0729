"""Where is a consumer in each partition, and where are its offsets committed?

Where one consumer is in each log that it reads, and what came of them. Asks brokers and the
group only for where a log begins.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from etl.errors import BrokerUnreachable, EtlError, NeedsDecision, NotAssigned
from etl.io.brokers.cluster import Cluster
from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor, RangeProgress
from etl.settings.choices import StartAt
from etl.streams.arrived import batches_of
from etl.streams.fetches import Arrived, FetchSizes
from etl.streams.kept import Kept
from etl.streams.records import Answer, Decoder, Record, records_of
from etl.streams.rotation import Rotation

_END_OF_ALL = 2**63 - 1


def refuse_no_offset(offset: int) -> None:
    """Raises ValueError for what no log has a place at: other clients of the group could not go on
    there.
    """
    try:
        number = operator.index(offset)
    except TypeError:
        number = -1
    if not 0 <= number < _END_OF_ALL:
        raise ValueError(f"{offset!r} is no offset, which is a whole number from 0 on")


class Positions:
    """See `Consumer`. For one thread."""

    def __init__(
        self,
        cluster: Cluster,
        kept: Kept | None,
        start: StartAt | None,
        sizes: FetchSizes,
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        self._cluster, self._kept, self._start, self._sizes = cluster, kept, start, sizes
        self._key_decoder, self._value_decoder = key_decoder, value_decoder
        self.rotation = Rotation[Record]()
        self._walks: dict[BrokerPartition, RangeProgress] = {}
        self.known: dict[BrokerPartition, int] = {}
        """The next offset of each log that has one by now."""

    def assign(self, logs: Iterable[BrokerPartition]) -> None:
        """These and no others."""
        self.rotation.assign(logs)
        for log in set(self.known).difference(self.rotation.assigned):
            del self._walks[log], self.known[log]

    def position(self, log: BrokerPartition) -> int:
        """Raises NotAssigned, and as `place`."""
        self._refuse_foreign([log])
        self._place([log])
        return self.known[log]

    def seek(self, log: BrokerPartition, offset: int) -> None:
        """Raises NotAssigned, and as `refuse_no_offset`."""
        self._refuse_foreign([log])
        refuse_no_offset(offset)
        sizes, before = self._sizes, self._walks.get(log)
        cursor = Cursor(
            OffsetRange(log, offset, _END_OF_ALL),
            isolation=sizes.isolation,
            fetch_max_bytes=sizes.share(len(self.rotation.assigned)),
            fetch_limit_bytes=sizes.fetch_limit_bytes,
        )
        self.rotation.drop(log)
        self._walks[log] = RangeProgress(0, cursor, before.leader if before else None)
        self.known[log] = offset

    def seek_to(self, where: StartAt, logs: Collection[BrokerPartition] | None) -> None:
        """To one end of each, None: of all. Raises NotAssigned, BrokerUnreachable."""
        wanted = self.rotation.assigned if logs is None else logs
        self._refuse_foreign(wanted)
        for log, offset in self._ends(where, wanted).items():
            self.seek(log, offset)

    def place(self) -> None:
        """Give a position to each that has none: the group's, else where it was said to begin.

        Raises NeedsDecision where nobody says where one begins.
        """
        self._place(self.rotation.assigned)

    def done(self) -> dict[BrokerPartition, int]:
        """The next offset of each, behind all that was handed out."""
        return dict(self.known)

    def to_ask(self) -> list[RangeProgress]:
        """Those that the next fetch asks for, in the order of their turns."""
        return [self._walks[log] for log in self.rotation.to_ask()]

    def take_answers(self, arrived: Iterable[Arrived]) -> None:
        """Keep what came. An answer to a question that was overtaken, by a seek or another
        assignment, is left.
        """
        for walk, fetched, consumer in arrived:
            if self._walks.get(walk.log) is not walk:
                continue
            batches, failure = batches_of(walk, fetched, consumer, self._sizes.isolation)
            if failure or any(batch.num_rows for batch in batches):
                self._keep(
                    records_of(
                        walk.log,
                        batches,
                        walk.cursor.position,
                        failure,
                        key_decoder=self._key_decoder,
                        value_decoder=self._value_decoder,
                    )
                )
            else:
                self._pass(walk.log, walk.cursor.position)

    def _keep(self, arrived: Answer) -> None:
        """Records came, or why there are none."""
        self.rotation.feed(arrived.log, arrived)

    def _pass(self, log: BrokerPartition, offset: int) -> None:
        """There is nothing up to there."""
        self.known[log] = offset

    def take(self, most: int) -> dict[BrokerPartition, list[Record]]:
        """Up to so many records, to be handed out. Raises what those whose turn it is cannot be had
        for.
        """
        return self.rotation.take(most)

    def hand_out(self, taken: Mapping[BrokerPartition, list[Record]]) -> None:
        """The positions are behind these now."""
        self.known.update({log: some[-1].next_offset for log, some in taken.items()})

    def stop(self, logs: Collection[BrokerPartition]) -> None:
        """Hand out nothing more of these, which are about to be let go. Polls alone hand out, and
        this is within one.
        """

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Where Ctrl-C, or what nobody expected, ends what is done inside, it begins again behind
        what was handed out: nobody knows how much of an answer was taken by then."""
        try:
            yield
        except EtlError:
            raise
        except BaseException:
            for log in set(self.known).intersection(self.rotation.assigned):
                self.seek(log, self.known[log])
            raise

    def refuse_unreachable(self) -> None:
        """Raises why a log was out of reach for so long; then it is waited for as long again."""
        for walk in self.to_ask():
            if walk.failure is not None and walk.idle_for() >= self._sizes.timeout_s:
                walk.idle_since = None
                raise walk.failure

    def _place(self, logs: Collection[BrokerPartition]) -> None:
        new = [log for log in logs if log not in self.known]
        offsets = self._kept.committed(new) if self._kept and new else {}
        if left := [log for log in new if log not in offsets]:
            if self._start is None:
                what = "the group has no offset of the partition, and nothing says where it begins"
                raise NeedsDecision(
                    what, **left[0].place, check="seek, or start=earliest or latest"
                )
            offsets = {**offsets, **self._ends(self._start, left)}
        for log, offset in offsets.items():
            self.seek(log, offset)

    def _ends(
        self, where: StartAt, logs: Collection[BrokerPartition]
    ) -> dict[BrokerPartition, int]:
        if not logs:
            return {}
        found = self._cluster.extents(logs, isolation=self._sizes.isolation)
        if found.leaderless:
            lost = min(found.leaderless)
            raise BrokerUnreachable(f"the log {lost.unled}", **lost.place, check=lost.held_by)
        return {
            log: one.log_start_offset if where is StartAt.EARLIEST else one.end_offset
            for log, one in found.extents.items()
        }

    def _refuse_foreign(self, logs: Collection[BrokerPartition]) -> None:
        for log in logs:
            if log not in self.rotation.assigned:
                raise NotAssigned(
                    "the partition is not assigned to this consumer",
                    **log.place,
                    check="assign(), and what it was given",
                )
