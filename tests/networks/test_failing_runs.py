"""Errors of connection security by whole commands: exit code, key and file."""

from __future__ import annotations

import re

import pytest

from tests.command_result import refused
from tests.networks.secured import PASSWORD, MakePipeline, Secured
from tests.networks.ways_that_fail import FAILING, Failing
from tests.system.driving import Pipeline

pytestmark = pytest.mark.networks
ONE_OF_EACH = {
    (failing.kind, failing.key, *failing.where): case for case, failing in FAILING.items()
}
"""A case of each error, key and place; `test_ways_in` has all cases by a client."""


def failing_pipeline(failing: Failing, secured: Secured, piped: MakePipeline) -> Pipeline:
    """By the address: an unregistered listener is rejected before any connection."""
    way, address = failing.entered(secured)
    pipeline = piped(way, source={"listener": None, "bootstrap_servers": address})
    pipeline.produce(4)
    return pipeline


@pytest.mark.parametrize("case", sorted(ONE_OF_EACH.values()))
def test_run_and_doctor_end_with_the_exit_code_the_key_and_the_file_and_nothing_is_begun(
    secured: Secured,
    piped: MakePipeline,
    case: str,
) -> None:
    failing = FAILING[case]
    pipeline = failing_pipeline(failing, secured, piped)
    named = [
        *([f"key {failing.key}"] if failing.key else []),
        *(f"{name} {of(secured)}" for name, of in failing.where.items()),
    ]
    ran, looked = pipeline.run(), pipeline.door("doctor")
    refused(ran, failing.exit_code, *named)
    assert ran.document["error"] == failing.kind.__name__ and re.search(
        failing.pattern, " ".join(ran.err.split())
    ), ran.err
    lines = [
        line for line in looked.document["checks"] if line.get("error") == failing.kind.__name__
    ]
    reported = [
        f"{line['found']} {line['to_do']}"
        for line in lines
        if all(name in line["found"] for name in named)
    ]
    assert looked.code == failing.exit_code and any(
        re.search(failing.pattern, text) for text in reported
    ), looked.out
    assert not any(PASSWORD in text for value in (ran, looked) for text in (value.out, value.err))
    assert not pipeline.table.exists() and pipeline.committed() == {}
