"""`make bench-parts`: the cost for a run if the one before died between the table's commit and the
offsets. Differences in one run.

A normal run and a run that first repairs read the same number of new records, in turns, in one
Spark session. Counted are the seconds of the run's verbs, all of which begin with the held driver
lock. Runs are interrupted in this process: the state that they leave does not depend on how they
ended.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from etl.testkit.cluster import EmbeddedCluster
from tests.command_result import CommandResult
from tests.conftest import small_session
from tests.system.driving import Pipeline, broken_off_before


def spent(result: CommandResult) -> dict[str, float]:
    """Seconds of each verb of a run that went well."""
    assert result.code == 0, result.err
    return {verb: float(seconds) for verb, seconds in result.document["seconds"].items()}


def main() -> None:
    """Print the seconds of both kinds of run, verb by verb."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedCluster(folder=Path(name, "cluster")) as cluster,
        small_session(Path(name, "spark")),
    ):
        cluster.create_topic("clicks", 4)
        pipeline = Pipeline(cluster, Path(name), "clicks", "bench")
        pipeline.produce(arguments.records)
        pipeline.ran()
        normal, repairing = [], []
        for _ in range(arguments.rounds):
            pipeline.produce(arguments.records)
            normal.append(spent(pipeline.run()))
            pipeline.produce(arguments.records)
            broken_off_before("record", pipeline)
            pipeline.produce(arguments.records)
            repairing.append(spent(pipeline.run()))
        assert pipeline.is_whole()
    print(
        f"{arguments.records:,} records in the plan that was broken off and in each run, "
        f"median of {arguments.rounds}, seconds"
    )
    for what, runs in (("normal", normal), ("after a crash", repairing)):
        total = statistics.median(sum(run.values()) for run in runs)
        print(
            f"{what:14}{total:7.2f}  "
            + ", ".join(
                f"{verb} {statistics.median(run[verb] for run in runs):.2f}" for verb in runs[0]
            )
        )
    more = [sum(a.values()) - sum(b.values()) for a, b in zip(repairing, normal, strict=True)]
    print(
        f"the repair adds {statistics.median(more):.2f} s (least {min(more):.2f}, most "
        f"{max(more):.2f})"
    )


if __name__ == "__main__":
    main()
