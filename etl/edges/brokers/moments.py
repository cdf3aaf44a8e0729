"""What lies at a time in logs, asked of all their leaders, and whether a leader's word that there
is nothing can be believed.

A broker looks for the first segment whose largest timestamp is not below the time, and searches
that one alone. Of a segment whose records have no timestamps it takes the time at which the file
was last written: so one of these answers "none", and what is in later segments is not looked at
(seen on Kafka 0.10.2, 2.8 and 4.1). Such an answer is believed where the log bears it out: by its
largest timestamp, which brokers tell from Kafka 3.0 on (KIP-734), of others by the last of its
records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from etl.edges.brokers.last_times import largest_times, last_times
from etl.edges.brokers.offsets import LEADER_WITHIN_S, Listed, LogOffsets
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import BrokerUnreachable, EtlError, OtherRelease, SettingsError
from etl.kafka.messages import LATEST, reject_wrong_times
from etl.model.partitions import BrokerPartition, Isolation, Leader

_UNCOMMITTED = Isolation.READ_UNCOMMITTED


class LogMoments(LogOffsets):
    """The offsets that lie at a time."""

    def offsets_at(
        self,
        moments: Mapping[BrokerPartition, int],
        *,
        wait_for_leader_s: float = LEADER_WITHIN_S,
        may_be_earlier: bool = False,
    ) -> dict[BrokerPartition, int]:
        """The first offset of each log whose record is at its moment (in milliseconds) or later;
        the high watermark where none is.

        Asked without isolation: under read_committed brokers answer "none" for a record behind an
        open transaction, as for one that is not there, and the end that they then tell lies below
        records that are older. Logs that stay without a leader are left out.

        SettingsError where a log cannot be searched: by brokers before 0.10.1, in a message format
        without timestamps, or where "none" is not borne out by the log. Unless it `may_be_earlier`:
        then it is the start of the last segment that was written by then, or of the log. ValueError
        for a negative moment.
        """
        reject_wrong_times(moments)
        try:
            found = self.listed(moments, _UNCOMMITTED, wait_for_leader_s, None)
        except SettingsError as error:
            if may_be_earlier and not isinstance(error, OtherRelease):
                return self._segments_at(
                    moments, self.describe({log.topic for log in moments}).leaders
                )
            raise
        late = {log: moments[log] for log, offset in found.offsets.items() if offset is None}
        ends, doubted = self._ends_of(late, found.leaders)
        unsearched = {**found.unsearched, **doubted}
        if unsearched and not may_be_earlier:
            raise unsearched[min(unsearched)]
        earlier = self._segments_at({log: moments[log] for log in unsearched}, found.leaders)
        return {
            **{log: offset for log, offset in found.offsets.items() if offset is not None},
            **ends,
            **earlier,
        }

    def first_at(
        self,
        times_ms: Mapping[BrokerPartition, int],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> dict[BrokerPartition, int | None]:
        """The first offset of each log whose record is at its time or later; None where none is.

        SettingsError where a log cannot be searched, as `offsets_at`; BrokerUnreachable where one
        has no leader; ValueError for a negative time.
        """
        reject_wrong_times(times_ms)
        found = self.listed(times_ms, isolation, LEADER_WITHIN_S, None)
        late = {log: times_ms[log] for log, offset in found.offsets.items() if offset is None}
        if (
            isolation is not _UNCOMMITTED and late
        ):  # a record behind an open transaction is there, and none of those that can be read
            late = _late(
                late, self.listed(late, _UNCOMMITTED, LEADER_WITHIN_S, None, found.leaders)
            )
        _, doubted = self._ends_of(late, found.leaders)
        unsearched = {**found.unsearched, **doubted}
        if unsearched:
            raise unsearched[min(unsearched)]
        if lost := times_ms.keys() - found.offsets.keys():
            raise BrokerUnreachable(
                f"the log {min(lost).unled}", **min(lost).place, check=min(lost).held_by
            )
        return found.offsets

    def _ends_of(
        self,
        late: Mapping[BrokerPartition, int],
        leaders: Mapping[BrokerPartition, Leader],
    ) -> tuple[dict[BrokerPartition, int], dict[BrokerPartition, EtlError]]:
        """Of logs that have no record that late by their leaders' word: the high watermark where
        that is borne out, else the error.

        Where the last record is as late, it may have come since: then the time is asked for again.
        """
        if not late:
            return {}, {}
        ends = self.listed(
            dict.fromkeys(late, LATEST), _UNCOMMITTED, LEADER_WITHIN_S, None, leaders
        )
        highs = {log: offset for log, offset in ends.offsets.items() if offset is not None}
        believed = self._borne_out(late, highs, ends.leaders)
        doubted = {log: when for log, when in late.items() if log in highs and log not in believed}
        again = self.listed(doubted, _UNCOMMITTED, LEADER_WITHIN_S, None, ends.leaders)
        came = {log: offset for log, offset in again.offsets.items() if offset is not None}
        wrong: dict[BrokerPartition, EtlError] = {
            log: _doubted(log, ends.leaders[log]) for log in _late(doubted, again)
        }
        return {**{log: highs[log] for log in believed}, **came}, {**again.unsearched, **wrong}

    def _borne_out(
        self,
        late: Mapping[BrokerPartition, int],
        highs: Mapping[BrokerPartition, int],
        leaders: Mapping[BrokerPartition, Leader],
    ) -> set[BrokerPartition]:
        """The logs that have nothing that late by their largest timestamp; where nobody tells that,
        those that have nothing below the high watermark, or something earlier right there."""

        def ask(
            consumer: SimpleConsumer, logs: Collection[BrokerPartition]
        ) -> dict[BrokerPartition, int | None]:
            told = largest_times(consumer, logs)
            return {
                **told,
                **last_times(consumer, {log: highs[log] for log in logs if log not in told}),
            }

        filled = {log: leaders[log] for log, high in highs.items() if high}
        times = {log: when for answer in self.of_each(filled, ask) for log, when in answer.items()}
        return {
            log
            for log in highs
            if log not in times or ((told := times[log]) is not None and told < late[log])
        }

    def _segments_at(
        self,
        moments: Mapping[BrokerPartition, int],
        leaders: Mapping[BrokerPartition, Leader],
    ) -> dict[BrokerPartition, int]:
        """The start of the newest segment of each log that was written by its moment, by the clock
        of its broker; else of the log.
        """

        def ask(
            consumer: SimpleConsumer, logs: Collection[BrokerPartition]
        ) -> dict[BrokerPartition, int]:
            return {log: consumer.segment_before(log, moments[log]) for log in logs}

        answers = self.of_each({log: leaders[log] for log in moments if log in leaders}, ask)
        return {log: offset for answer in answers for log, offset in answer.items()}


def _late(times: Mapping[BrokerPartition, int], found: Listed) -> dict[BrokerPartition, int]:
    """Those of the logs for which "none" was answered."""
    return {
        log: when
        for log, when in times.items()
        if log in found.offsets and found.offsets[log] is None
    }


def _doubted(log: BrokerPartition, leader: Leader) -> SettingsError:
    return SettingsError(
        "the broker finds no record that late, but the log does not bear it out: it has one, or its last record has no timestamp. Records "
        "without timestamps keep a broker from finding later ones",
        **log.place,
        broker=leader.broker,
        check="where reading is to start or stop by a time: earliest and offsets hold for this log (a committed one of the group, too)",
    )
