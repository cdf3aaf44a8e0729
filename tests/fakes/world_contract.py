"""The laws that hold for the fake services of a run, for the soak's and for the real ones; each
suite has a `stage` fixture of its own.

Crash tests on fake services are worth as much as the fakes are like the real services: a wrong fake
fails here. Where rows do not matter a plan has no ranges, and then the real services need no Spark.
"""

from __future__ import annotations

from etl.model.partitions import Committed, PartitionOffsets
from etl.model.snapshot import Ledger
from tests.builders import with_facts
from tests.fakes.ledger_contract import LedgerContract
from tests.fakes.offsets_contract import OffsetsContract
from tests.fakes.run_key_contract import RunKeyContract
from tests.fakes.table_contract import TableContract
from tests.fakes.world_stage import SIZES, Stage, append, stored


class WorldContract(LedgerContract, TableContract, OffsetsContract, RunKeyContract):
    """What `ingest` may rely on."""

    def test_before_anything_is_planned_there_are_logs_and_nothing_else(self, stage: Stage) -> None:
        seen = stage.world().observe()
        assert set(seen.readable) == set(stage.logs)
        assert all(
            seen.readable[partition] == PartitionOffsets(0, size)
            for partition, size in zip(stage.logs[:2], SIZES, strict=False)
        )
        assert (
            seen.ledger,
            seen.table,
            seen.committed,
            seen.owners,
            seen.group.live_consumers,
        ) == (
            Ledger(),
            None,
            {},
            {},
            (),
        )

    def test_each_verb_of_a_run_is_seen_by_the_next_look(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world, other = stage.world(), stage.world("run-2")
        plan = stored(world, {a: 5, b: 3})
        seen = other.observe()
        assert seen.ledger == Ledger("uid1", plan, newest_version=0) and seen.table is None
        with world.claiming(plan):
            assert set(other.observe().owners) == {a, b}
            applied, table = append(world, plan)
            assert applied is not None and table is not None
            seen = other.observe()
            assert seen.table == table and seen.ledger.applied is None and seen.committed == {}
            world.record(plan, applied)
            seen = other.observe()
            assert (
                seen.ledger
                == Ledger("uid1", plan, applied, applied.delta_version, newest_version=0)
                and seen.committed == {}
            )
            moved = world.commit(plan)
            assert other.observe().committed == moved == {a: Committed(5, 0), b: Committed(3, 0)}
            before = other.observe()
            world.tidy()
        assert other.observe() == with_facts(before, owners={})
