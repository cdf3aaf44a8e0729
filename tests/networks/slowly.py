"""A transform that makes a task long: the brokers end several logins meanwhile."""

from __future__ import annotations

import os
import time

import pyarrow as pa

_MOST_S, _EACH_S = 21.0, 2.0
_begun: list[float] = []


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows, later; write to a file how long this process has worked."""
    if batch.num_rows:
        _begun.append(time.monotonic())
        if time.monotonic() - _begun[0] < _MOST_S:
            time.sleep(_EACH_S)
        with open(f"{os.environ['TOKENS_ASKED']}.took", "w", encoding="utf-8") as file:
            file.write(str(time.monotonic() - _begun[0]))
    return batch
