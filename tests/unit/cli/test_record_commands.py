"""What the options of `etl records show` request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etl.commands import peek
from etl.commands.peek import PeekRequest
from etl.errors import Stopped
from etl.settings.choices import StartAt
from etl.settings.source import BeforeEnd
from tests.builders import conf_in
from tests.command_result import refused, run_etl


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[PeekRequest]:
    """The requests of commands, none of which is carried out."""
    made: list[PeekRequest] = []

    def open_peek(settings: Any, request: PeekRequest) -> Any:
        made.append(request)
        raise Stopped("not opened")

    monkeypatch.setattr(peek, "open_peek", open_peek)
    return made


@pytest.mark.parametrize(
    ("words", "request_of_it"),
    [
        ((), PeekRequest("clicks:0", StartAt.EARLIEST, 10, False, 10.0)),
        (("--timeout", "0s"), PeekRequest("clicks:0", StartAt.EARLIEST, 10, False, 0.0)),
        (("--timeout", "500ms", "--from", "7"), PeekRequest("clicks:0", 7, 10, False, 0.5)),
        (("--last", "3"), PeekRequest("clicks:0", BeforeEnd(3), 3, False, 10.0)),
        (("--last", "3", "-n", "2"), PeekRequest("clicks:0", BeforeEnd(3), 2, False, 10.0)),
        (("--follow",), PeekRequest("clicks:0", StartAt.EARLIEST, None, True, None)),
    ],
)
def test_options_are_a_request(
    words: tuple[str, ...], request_of_it: PeekRequest, requests: list[PeekRequest], tmp_path: Path
) -> None:
    run_etl("records", "show", str(conf_in(tmp_path, 1)), "-p", "clicks:0", *words)
    assert requests == [request_of_it]


def test_two_options_that_set_the_start_are_refused(
    requests: list[PeekRequest], tmp_path: Path
) -> None:
    conf = str(conf_in(tmp_path, 1))
    result = run_etl(
        "records", "show", conf, "-p", "clicks:0", "--from", "7", "--last", "3", "--json"
    )
    refused(result, 2, "--from and --last both set the start")
    assert not requests
