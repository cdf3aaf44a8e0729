"""The results, kept as JSON while they come, with what they were measured on; the page is made of
nothing else.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import etl
from bench.whole.page import rendered
from etl.testkit.brokers import DEFAULT_VERSION
from etl.testkit.java_and_jars import find_java, spark_jars

PAGE, KEPT = "speed.md", "benchmark.json"
_PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "numpy", "numba", "confluent-kafka")


class Document:
    """`add_result` adds a result and writes both files of the folder."""

    def __init__(
        self, folder: Path, words: Sequence[str], *, codec: str, goes_on: bool = False
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._page, self._kept = folder / PAGE, folder / KEPT
        if goes_on and self._kept.exists():
            known = json.loads(self._kept.read_text())
        else:
            known = {"commands": [], "results": []}
        here = machine()
        load = _then(known.get("machine", {}).get("load_at_start"), here["load_at_start"])
        self._content: dict[str, Any] = {
            "commands": [*known["commands"], _command(words)],
            "measured_at": _then(
                known.get("measured_at"), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            ),
            "codec": codec,
            "machine": {**here, "load_at_start": load},
            "versions": versions(),
            "results": known["results"],
        }
        self._replaced = set[tuple[Any, ...]]()

    def add_result(self, result: Mapping[str, Any]) -> None:
        """One more; the first of a kind takes the place of those that were there before."""
        about = _about(result)
        if about not in self._replaced:
            self._replaced.add(about)
            self._content["results"] = [
                one for one in self._content["results"] if _about(one) != about
            ]
        self._content["results"].append({name: _short(value) for name, value in result.items()})
        _written(self._kept, json.dumps(self._content, indent=1) + "\n")
        _written(self._page, rendered(self._content))


def render_again(folder: Path) -> None:
    """The page anew, from the results that are there: its words have changed."""
    _written(folder / PAGE, rendered(json.loads((folder / KEPT).read_text())))


def _command(words: Sequence[str]) -> str:
    """As it is typed, but for the folder of the files: where they lie changes no figure."""
    left = iter(words)
    kept = [
        word
        for word in left
        if not (word == "--to" and next(left)) and not word.startswith("--to=")
    ]
    return shlex.join(["python", "-m", "bench", *kept])


def _then(before: Any, now: Any) -> Any:
    """The state for the commands before, and for this one."""
    return now if before is None else f"{before}, then {now}"


def _about(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        result.get(name) for name in ("part", "workload", "kind", "records", "cores", "partitions")
    )


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _written(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def machine() -> Mapping[str, Any]:
    """What it is measured on."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory = next(
        (int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0
    )
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**20),
        "system": f"{platform.system()} {platform.release()}",
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def versions() -> Mapping[str, str]:
    """Of everything that has a part in it."""
    zookeeper = next(
        jar.stem.removeprefix("zookeeper-")
        for jar in spark_jars("zookeeper-")
        if jar.stem[10:11].isdigit()
    )
    java = next(
        (
            line.partition("=")[2].strip('"')
            for line in _release(find_java())
            if line.startswith("JAVA_VERSION=")
        ),
        "",
    )
    return {
        "offset-range-etl": etl.__version__,
        "Python": platform.python_version(),
        "Java": java,
        "Kafka": DEFAULT_VERSION,
        "ZooKeeper": zookeeper,
        "Spark's Kafka source": "4.0.0",
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def _release(java: Path) -> list[str]:
    reported = java.resolve().parent.parent / "release"
    return _lines(str(reported)) if reported.exists() else []
