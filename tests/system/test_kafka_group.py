"""A live consumer of Kafka's own group of our group's name, on a real broker: it is seen, named,
and left what it reads.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.command_result import refused
from tests.system.driving import Pipeline
from tests.system.live_consumers import consuming

pytestmark = pytest.mark.without_spark


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_live_consumer_of_kafkas_own_group_is_refused_or_left_what_it_reads(
    make_pipeline: Callable[..., Pipeline], policy: str
) -> None:
    pipeline = make_pipeline(
        partitions=2, group={"on_active_members": policy}, ledger={"lock_timeout_s": 0}
    )
    pipeline.produce(40, partitions=2)
    with consuming(pipeline, pipeline.group, partitions=2):
        result, diagnosis = pipeline.run(), pipeline.door("doctor").document
        lines = [line for line in diagnosis["checks"] if line["name"] == "group"]
        if policy == "fail":
            refused(result, 4, "Live consumers are registered in the group: other-consumer-")
            assert lines[0]["verdict"] == "failed" and "other-consumer-" in lines[0]["found"]
        else:
            assert result.code == 0 and "owned_by_others" in result.outcomes, result.err
            assert "other-consumer-" in str(result.document["outcomes"]) and not pipeline.in_table()
            assert [line["verdict"] for line in lines] == ["advice", "advice"]
    assert pipeline.door("run", after=["--dry-run"]).document["records_at_most"] == 40
