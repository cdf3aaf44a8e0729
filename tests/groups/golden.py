"""Answers of the original classes to the first of the random groups and patterns, for tests that
start no Java.

`python -m tests.groups.golden` computes them again and writes `golden.json`; run it after a change
of the random groups or patterns.
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from etl.decide.group_assignment import Strategy
from tests.brokers.foreign import Process
from tests.groups.oracles import DIVIDED, SOURCES, Oracle, digest, group_for, led_by_java
from tests.groups.random_groups import led_group_of
from tests.groups.random_patterns import in_java, pattern_of

GOLDEN = Path(__file__).with_name("golden.json")
_GROUPS = 100
_PATTERNS = 2000


def golden() -> dict[str, Any]:
    """Digests by release and strategy, and what each pattern matches, in hexadecimal."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


def key(version: str, strategy: Strategy) -> str:
    return f"{version} {strategy.value}"


def _divided(version: str, strategy: Strategy, folder: Path) -> list[str]:
    with Oracle(version, folder) as oracle:
        return [
            digest(one)
            for (one,) in oracle.shares(
                (group_for(version, seed) for seed in range(_GROUPS)), strategy
            )
        ]


def _of_java(folder: Path) -> dict[str, Any]:
    with Process("LeaderAssignors", "3.9.1", folder, sources=SOURCES) as java:
        led = {
            strategy: [
                digest(one)
                for one in led_by_java(java, strategy, map(led_group_of, range(_GROUPS)))
            ]
            for strategy in ("range", "roundrobin")
        }
        matches = in_java(java, [pattern_of(seed) for seed in range(_PATTERNS)])
    return {
        "led": led,
        "matches": " ".join("-" if one == "refused" else f"{int(one, 2):x}" for one in matches),
    }


def _write() -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(3) as several:
        divided = {key(*one): several.submit(_divided, *one, Path(folder)) for one in DIVIDED}
        found = {
            "divided": {name: " ".join(one.result()) for name, one in divided.items()},
            **_of_java(Path(folder)),
        }
    found["led"] = {name: " ".join(one) for name, one in found["led"].items()}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    _write()
