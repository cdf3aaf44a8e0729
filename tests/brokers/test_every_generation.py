"""A pipeline on each release: foreign producers write, and the table holds what the release's own consumer reads."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.brokers.writing import FETCH_BYTES, ForeignPipeline
from tests.system.driving import broken_off_before


def test_what_foreign_producers_write_is_in_the_table_once_also_behind_a_crash(make_pipeline: Callable[..., ForeignPipeline]) -> None:
    """Every codec, null and size; and a run that ends between its Delta commit and the offsets."""
    pipeline = make_pipeline(source={"fetch_max_bytes": FETCH_BYTES})
    pipeline.write_every_kind()
    assert pipeline.door("plan").code == 0
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    pipeline.write_more()
    broken_off_before("commit", pipeline)
    pipeline.write_more()
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    assert pipeline.door("verify").code == 0


@pytest.mark.brokers
def test_a_real_run_that_is_killed_behind_its_delta_commit_leaves_each_record_once(make_pipeline: Callable[..., ForeignPipeline]) -> None:
    pipeline = make_pipeline()
    pipeline.write_more()
    assert pipeline.killed_before("commit") == -signal.SIGKILL
    pipeline.write_more()
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    assert pipeline.door("verify").code == 0
