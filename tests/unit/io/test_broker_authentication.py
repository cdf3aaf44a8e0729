"""A user's function that returns tokens, within the deadline of its caller."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from etl.errors import BrokerUnreachable, SettingsError
from etl.io.brokers.authentication import call_with_deadline


class NoError(BaseException):
    """No Exception."""


def raising(error: BaseException) -> Callable[[], Any]:
    def function() -> None:
        raise error

    return function


def called(function: Callable[[], Any], seconds: float = 60.0) -> Any:
    return call_with_deadline(
        function,
        time.monotonic() + seconds,
        name="tokens:token",
        key="source.security.sasl.token",
        address="kafka:9093",
    )


def test_what_it_returns_is_returned() -> None:
    assert called(lambda: "a token") == "a token" and called(lambda: None) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda: sys.exit(0),
        raising(NoError("hunter2")),
        raising(ConnectionError("hunter2")),
        raising(KeyboardInterrupt()),
    ],
)
def test_every_exception_is_an_error_of_the_token_function_and_its_text_is_hidden(
    function: Callable[[], Any],
) -> None:
    with pytest.raises(
        BrokerUnreachable,
        match=r"tokens:token raised \w+ at test_broker_authentication.py:\d+ and returned no token",
    ) as error:
        called(function)
    assert "hunter2" not in str(error.value)
    assert error.value.where["key"] == "source.security.sasl.token"


def test_an_error_with_an_action_stays_itself() -> None:
    with pytest.raises(SettingsError, match="not installed"):
        called(raising(SettingsError("a library is not installed")))


def test_a_hanging_function_is_abandoned_at_the_deadline() -> None:
    ended = threading.Event()
    try:
        with pytest.raises(
            BrokerUnreachable,
            match=r"returned no token within 0\.\d s, the time left of source\.request_timeout_s",
        ):
            called(ended.wait, seconds=0.05)
    finally:
        ended.set()
