"""The law of exactly once, over random histories of everything that happens to a pipeline.

`tests.fakes.any_history` has the rules and what must hold. Each mutant takes one guard away, and
the law must find that within a minute.

The gate plays the same histories each time. For others:

    STATEFUL=10000 python -m pytest tests/unit/run/test_stateful_law.py -k history
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fakes.any_history import Pipeline


def _play(machine: type[Pipeline], examples: int, steps: int, **more: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )


def test_the_law_holds_in_every_history() -> None:
    asked = os.environ.get("STATEFUL")
    if asked:
        _play(Pipeline, int(asked), 30, derandomize=False)
    else:
        _play(Pipeline, 250, 20, derandomize=True)
