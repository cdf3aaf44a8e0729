"""One target under atheris, in a new process: libFuzzer searches inputs that reach new places of
the instrumented code.

A forbidden exception is saved and not searched for again; only an end of the process (a hang,
memory, a crash of compiled code) ends the search, too, and libFuzzer saves that input itself. The
kernels stay compiled and are not instrumented: a counter in them would not compile. Importing this
module imports the instrumented code: once, and each search is a fork of that.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import traceback
from pathlib import Path
from random import Random

import atheris

with (
    contextlib.redirect_stderr(io.StringIO()),
    atheris.instrument_imports(
        include=["etl", "yaml"],
        exclude=[
            f"etl.records.{name}" for name in ("compiled", "crc32", "kernel", "message_set_kernel")
        ],
    ),
):
    from tests.fuzz.guard import Found, attempt
    from tests.fuzz.mutations import mutated
    from tests.fuzz.targets import BY_NAME

LONGEST_INPUT = 4096
HANG_S = 10
MEMORY_MB = 1024
"""Of the whole process, of which the imports take about 300."""


def search(name: str, folder: Path, seconds: int) -> None:
    """Fuzz the target `name` for `seconds`. Never returns: libFuzzer ends the process."""
    target, known = BY_NAME[name], set[str]()
    examples = [*target.seeds, *target.bad]
    for kept in ("corpus", "seeds", "found"):
        (folder / kept).mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(examples):
        (folder / "seeds" / str(i)).write_bytes(seed)

    def one(content: bytes) -> None:
        try:
            attempt(target, content)
        except Found as found:
            place = _place_of(found)
            if place not in known:
                known.add(place)
                _keep(found, place, content, folder / "found")

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        choose = Random(seed)
        if choose.random() < 0.5:
            return bytes(atheris.Mutate(content, most))
        return mutated([content, content, *examples], choose, is_json=target.is_json)[:most]

    atheris.Setup(
        [
            "fuzz",
            f"-max_total_time={seconds}",
            f"-timeout={HANG_S}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-max_len={LONGEST_INPUT}",
            "-print_final_stats=1",
            f"-artifact_prefix={folder}/found/",
            str(folder / "corpus"),
            str(folder / "seeds"),
        ],
        one,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


def _place_of(found: BaseException) -> str:
    """Type and innermost place of the exception: two inputs with the same ones are one finding."""
    cause = found.__cause__ or found
    frames = traceback.extract_tb(cause.__traceback__)
    return f"{type(cause).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"


def _keep(found: BaseException, place: str, content: bytes, folder: Path) -> None:
    path = folder / f"error-{hashlib.sha256(content).hexdigest()[:16]}"
    path.write_bytes(content)
    path.with_suffix(".txt").write_text(f"{place}\n{found}\n")
