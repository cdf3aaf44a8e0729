"""Row 19: a network that is slow, stalls, hangs up or cuts answers, by a proxy in front of a real
broker.

A run either gets through by its own retries or ends with exit 6, in bounded time and with nothing
wrong in the table; the next run, over a healed network, loads the rest. A producer writes
meanwhile, past the proxy.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from tests.chaos.driver import Driver
from tests.chaos.kept import kept
from tests.chaos.proxy import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    ProxiedCluster,
    Spoil,
    cut,
    delayed,
    in_pieces,
    reset,
    stalled,
)
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of

TIMEOUT_S = 2.0
"""`source.request_timeout_s` of these runs."""
_THROUGH, _GAVE_UP = frozenset({0}), frozenset({6})


def spoiled(
    stage: Stage,
    *,
    spoil: Spoil,
    ends: Collection[int],
    api: int | None = FETCH,
    after: int = 0,
    times: int | None = None,
    records: int = 400,
    **source: Any,
) -> CaseResult:
    """One run with spoiled answers, which must end with one of these exit codes, and the next one
    with none.
    """
    cluster = kept("network", lambda folder: ProxiedCluster(folder))
    pipeline = stage.pipeline(
        cluster=cluster,
        spark={"spark.master": "local[2]"},
        source={
            "bootstrap_servers": f"127.0.0.1:{cluster.proxy.port}",
            "request_timeout_s": TIMEOUT_S,
            "fetch_max_bytes": 4096,
            **source,
        },
    )
    pipeline.produce(records)
    with stage.writing(pipeline) as writer:
        cluster.proxy.spoil(spoil, api=api, after=after, times=times)
        stage.at_end.callback(cluster.proxy.heal)
        with Driver(pipeline) as driver:
            result = (
                driver.wait()
            )  # under a deadline: nine attempts of `TIMEOUT_S` and the pauses between them are 45 s
        assert cluster.proxy.spoiled, "no answer was spoiled"
        assert result.code in ends, f"{summary_of(result)}\n{result.err}"
        after_it = f"{held(pipeline)}; the run itself: {summary_of(result)}"
        cluster.proxy.heal()
        writer.wait_for(20)
        next_run = pipeline.ran()
    return stage.finish(pipeline, after=after_it, next_run=next_run)


def _late() -> Spoil:
    return delayed(TIMEOUT_S + 2)


CASES: tuple[Case, ...] = (
    Case(
        19,
        "network-a-byte-at-a-time",
        "every answer comes one byte at a time",
        partial(spoiled, spoil=in_pieces(1, 0), ends=_THROUGH, api=None, request_timeout_s=20),
    ),
    Case(
        19,
        "network-slower-than-the-deadline",
        "every answer to a fetch comes byte by byte, slower than its deadline",
        partial(spoiled, spoil=in_pieces(1, 0.05), ends=_GAVE_UP),
    ),
    Case(
        19,
        "network-stalls-once",
        "an answer to a fetch stalls in the middle for good",
        partial(spoiled, spoil=stalled(0.5), ends=_THROUGH, after=1, times=1),
    ),
    Case(
        19,
        "network-stalls-always",
        "every answer to a fetch stalls in the middle",
        partial(spoiled, spoil=stalled(0.5), ends=_GAVE_UP),
    ),
    Case(
        19,
        "network-stalls-for-the-driver",
        "the answer to ListOffsets stalls before the plan is made",
        partial(spoiled, spoil=stalled(0.5), ends=_GAVE_UP, api=LIST_OFFSETS),
    ),
    Case(
        19,
        "network-resets-some",
        "three answers to fetches are reset in the middle",
        partial(spoiled, spoil=reset(0.5), ends=_THROUGH, after=1, times=3),
    ),
    Case(
        19,
        "network-resets-always",
        "every answer to a fetch is reset in the middle",
        partial(spoiled, spoil=reset(0.5), ends=_GAVE_UP),
    ),
    Case(
        19,
        "network-cuts-some",
        "three answers to fetches are cut in the middle, with an orderly end of the connection",
        partial(spoiled, spoil=cut(0.5), ends=_THROUGH, after=1, times=3),
    ),
    Case(
        19,
        "network-cuts-always",
        "every answer to a fetch is cut in the middle",
        partial(spoiled, spoil=cut(0.5), ends=_GAVE_UP),
    ),
    Case(
        19,
        "network-hangs-up-on-every-fetch",
        "the connection ends before the first byte of every answer to a fetch",
        partial(spoiled, spoil=cut(0.0), ends=_GAVE_UP),
    ),
    Case(
        19,
        "network-late-once",
        "an answer to a fetch comes whole, after its deadline",
        partial(spoiled, spoil=_late(), ends=_THROUGH, after=1, times=1),
    ),
    Case(
        19,
        "network-late-always",
        "every answer to a fetch comes after its deadline",
        partial(spoiled, spoil=_late(), ends=_GAVE_UP),
    ),
    Case(
        19,
        "network-late-for-the-driver",
        "the answer to Metadata comes after its deadline",
        partial(spoiled, spoil=_late(), ends=_GAVE_UP, api=METADATA),
    ),
)
