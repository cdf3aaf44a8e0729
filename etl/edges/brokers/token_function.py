"""A function of the user's that gives tokens, called within a deadline: whatever it does, the run
goes on or says why not.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from etl.errors import BrokerUnreachable, EtlError


def called_until(
    function: Callable[[], Any], deadline: float, *, name: str, key: str, address: str
) -> Any:
    """What it returns. `deadline`: a `time.monotonic` moment.

    Raises the function's own EtlError, and BrokerUnreachable where it raises anything else, ends
    the process (`sys.exit`), or does not come back. What its exception says is not told: it may
    hold what it was given. Its thread is its own, and is left behind if it hangs.
    """
    outcome = list[Any]()
    failure = list[BaseException]()

    def call() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # SystemExit, too: a program that was wrapped ends itself, and would end the run as if it were done
            failure.append(error)

    calling = threading.Thread(target=call, name="token", daemon=True)
    began = time.monotonic()
    calling.start()
    calling.join(max(0.0, deadline - began))
    if outcome:
        return outcome[0]
    if failure and isinstance(failure[0], EtlError):
        raise failure[0]
    if failure:
        what = (
            f"{name} raised {type(failure[0]).__name__} at {_place(failure[0])}, and gave no token"
        )
    else:
        what = f"{name} gave no token in {time.monotonic() - began:.1f} s, which were left of source.timeout_s"
    raise BrokerUnreachable(
        what, key=key, broker=address, check="that function, and whom it asks"
    ) from None


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"
