"""Row 19: a network that is slow, stalls, hangs up or cuts answers, by a proxy in front of a real
broker.

A run either gets through by its own retries or ends with exit 6, in bounded time and with nothing
wrong in the table; the next run, over a healed network, loads the rest. A producer writes
meanwhile, past the proxy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.chaos import proxy
from tests.chaos.driver import Driver
from tests.chaos.proxy import Spoil, cut, delayed, in_pieces, reset, stalled
from tests.chaos.stage import CaseResult, Stage, ended, held_after
from tests.chaos.ways import staged_at_brokers

TIMEOUT_S = 2.0
SPOILS: Mapping[str, Spoil] = {
    "a byte at a time": in_pieces(1, 0),
    "slower than its deadline": in_pieces(1, 0.05),
    "stalls in the middle": stalled(0.5),
    "reset in the middle": reset(0.5),
    "cut in the middle": cut(0.5),
    "cut before its first byte": cut(0.0),
    "late": delayed(TIMEOUT_S + 2),
}
"""What becomes of an answer."""


def spoiled(
    stage: Stage,
    *,
    spoil: str,
    ends: int,
    api: str | None = "FETCH",
    after: int = 0,
    times: int | None = None,
    **source: Any,
) -> CaseResult:
    """One run with spoiled answers, which must end with this exit code, and the next one with none."""
    source = {"request_timeout_s": TIMEOUT_S, "fetch_max_bytes": 4096, **source}
    there, network = staged_at_brokers(stage, "alone", **source)
    pipeline = there.pipeline
    pipeline.settings["spark"] = {"spark.master": "local[2]"}
    pipeline.produce(400)
    with stage.writing(pipeline) as writer:
        which = getattr(proxy, api) if api else None
        network.spoil(SPOILS[spoil], api=which, after=after, times=times)
        with Driver(pipeline) as driver:
            # under a deadline: nine attempts of `TIMEOUT_S` and the pauses between them are 45 s
            result = ended(driver.wait(), ends)
        assert network.spoiled, "no answer was spoiled"
        after_it = held_after(pipeline, result)
        network.heal()
        writer.wait_for(20)
        next_run = pipeline.ran()
    return stage.finish(pipeline, after_it, next_run)
