"""Which records must be in the table, by what happened outside of the product?

A record is (partition, life of the partition, offset): after a truncation or a recreation another
record has the same offset. The oracle reads the fake partitions, the rows of the fake table and the
committed offsets. Of the product's own documents it reads the positions of the newest plan alone,
where an operator gives up what is below them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from etl.ledger.plan_document import parse_plan
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss
from tests.fakes.fake_log import offset_of
from tests.fakes.outside import Outside

Record = tuple[TopicPartition, int, int]


class RecordOracle:
    """The records of the partitions of `outside`, and which of them may be missing."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.excused: set[Record] = set()
        """Records that may be missing: from before the pipeline began, or of a table given up."""
        self.passed_over: set[Record] = set()
        """Records that may be missing if a plan states it."""
        self.expired: set[Record] = set()
        """Records that retention deleted before they were loaded. Plans must state them, too."""
        self.unsettled: set[TopicPartition] = set()
        """Partitions of which something changed that no complete run has observed."""
        self.cut_at: dict[TopicPartition, int] = {}
        """Of truncated ones among them: the offset from which on the records are others."""

    # -- what happens outside

    def truncated(self, partition: TopicPartition, at: int) -> None:
        """From this offset on the partition has lost its records."""
        self.unsettled.add(partition)
        self.expired = {one for one in self.expired if one[0] != partition}
        self.cut_at[partition] = min(at, self.cut_at.get(partition, at))

    def changed(self, partitions: Collection[TopicPartition]) -> None:
        self.unsettled.update(partitions)

    def expires(self, partition: TopicPartition, until: int) -> None:
        """Retention deletes the records below the offset; unloaded ones are lost."""
        newest = self._outside.newest_plan()
        if newest and partition in newest.loaded_until and partition not in self.unsettled:
            self.expired |= {
                one for one in self.missing() if one[0] == partition and one[2] < until
            }

    def observed(self, partitions: Collection[TopicPartition]) -> None:
        """A run came to its end, and has compared these partitions with what it knew."""
        self.unsettled.difference_update(partitions)
        for partition in partitions:
            self.cut_at.pop(partition, None)

    def excuse_all(self) -> None:
        """The pipeline may begin after all present records."""
        self.excused |= self.held()

    def excuse_below(self, partition: TopicPartition, offset: int) -> None:
        """The pipeline may begin at the offset."""
        self.excused |= self._between(partition, 0, offset)

    def excuse_given_up(self, positions: Mapping[TopicPartition, int]) -> None:
        """An operator accepted a table: what it lacks below the positions is not loaded again."""
        for partition, position in positions.items():
            if partition in self._outside.logs:
                self.excuse_below(partition, position)

    def pass_over(self, partition: TopicPartition, start: int, until: int) -> None:
        """An operator or another client may pass over the present records from start to until."""
        self.passed_over |= self._between(partition, start, until)

    def _between(self, partition: TopicPartition, start: int, until: int) -> set[Record]:
        known = self.held() | self.expired
        return {one for one in known if one[0] == partition and start <= one[2] < until}

    # -- what must hold

    def held(self) -> set[Record]:
        found: set[Record] = set()
        for partition, one in self._outside.logs.items():
            for place in one.held(one.log_start, one.end):
                offset = offset_of(place)
                found.add((partition, one.incarnation_of(offset), offset))
        return found

    def loaded(self) -> set[Record]:
        return {
            (partition, life, offset_of(place))
            for partition, life, place in self._outside.records()
        }

    def missing(self) -> list[Record]:
        """The records that the brokers have, the table lacks, and that may not be missing."""
        return sorted(self.held() - self.loaded() - self.excused - self.passed_over)

    def reject_doubled(self) -> None:
        """No record is in the table twice, and no two rows have one key."""
        doubled = [one for one, times in self._outside.records().items() if times > 1]
        assert not doubled, f"records are in the table twice: {doubled}"
        alike = [key for key, times in self._outside.keys().items() if times > 1]
        assert not alike, f"rows have the same key: {alike}"

    def reject_passed_over(self) -> None:
        """No committed offset is ahead of a record that is missing."""
        committed = self._outside.committed()
        passed = []
        for partition, life, offset in self.missing():
            until = committed[partition].offset if partition in committed else None
            if partition not in self.unsettled and until is not None and offset < until:
                passed.append((partition, life, offset))
        assert not passed, f"committed offsets are ahead of missing records: {passed}"

    def reject_missing(self, *, below: Mapping[TopicPartition, int] | None = None) -> None:
        """Nothing is missing; `below`: only below these offsets is everything required."""
        missing = []
        for partition, life, offset in self.missing():
            if below is None or offset < below.get(partition, 0):
                missing.append((partition, life, offset))
        assert not missing, f"records are missing after a complete run: {missing}"

    def reject_unstated(self) -> None:
        """What was passed over or has expired is in the table, or a plan states that it is lost."""
        stated = set()
        for loss in self._losses():
            stated |= {(loss.partition, at) for at in range(loss.from_offset, loss.until_offset)}
        held = self.held()
        absent = (self.passed_over & held) | self.expired
        unstated = []
        for partition, life, offset in sorted(absent - self.loaded() - self.excused):
            if (partition, offset) not in stated:
                unstated.append((partition, life, offset))
        assert not unstated, f"no plan states that these records are lost: {unstated}"

    def _losses(self) -> list[Loss]:
        """The losses of the losses table, of stored plans, and of plans in the table."""
        found = [loss for _, loss in self._outside.losses]
        for payload in self._outside.plans.values():
            found += parse_plan(payload, path="plans").losses.lost
        for commit in self._outside.table or ():
            found += commit.plan.losses.lost
        return found
