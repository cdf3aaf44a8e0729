"""`python -m tests.fuzz`: every target in turn, each in its own process for its share of the time;
exit 1 when something was found.

    python -m tests.fuzz --seconds 600             all targets, ten minutes together
    python -m tests.fuzz --target conf-file        one of them (may be given several times)
    python -m tests.fuzz --repeat conf-file FILE   read one saved input again, in the tests' bounds

The corpora stay under `.fuzz/`, so that the next run starts where this one ended.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import re
import sys
import time
from pathlib import Path

KEPT = Path(".fuzz")
ENDING_S = 30
"""How much longer than its time a search may take to end."""


def main() -> int:
    """Run the requested searches; 0, or 1 after a finding, or 2 if it cannot start."""
    if importlib.util.find_spec("atheris") is not None and "--repeat" not in sys.argv:
        import tests.fuzz.guided  # noqa: F401  before anything else imports what it watches
    from tests.fuzz.targets import BY_NAME

    request = argparse.ArgumentParser(prog="python -m tests.fuzz")
    request.add_argument("--seconds", type=int, default=600, help="of all targets together")
    request.add_argument(
        "--target",
        action="append",
        choices=list(BY_NAME),
        metavar="NAME",
        help=f"one of {', '.join(BY_NAME)}",
    )
    request.add_argument(
        "--repeat", nargs=2, metavar=("NAME", "FILE"), help="read one saved input again"
    )
    arguments = request.parse_args()
    if arguments.repeat:
        return _repeat(arguments.repeat[0], Path(arguments.repeat[1]))
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: make fuzz, or pip install -e '.[fuzz]'", file=sys.stderr)
        return 2
    return _search_all(arguments.target or list(BY_NAME), arguments.seconds)


def _repeat(name: str, path: Path) -> int:
    from tests.fuzz.guard import Found, check
    from tests.fuzz.targets import BY_NAME

    try:
        check(BY_NAME[name], path.read_bytes())
    except Found as found:
        print(found)
        return 1
    print("nothing wrong with it")
    return 0


def _search_all(names: list[str], seconds: int) -> int:
    deadline, has_found = time.monotonic() + seconds, False
    print(f"{'target':28}{'inputs':>12}  found")
    for i, name in enumerate(names):
        share = (deadline - time.monotonic()) / (len(names) - i)
        inputs, found = _search(name, max(2, int(share)))
        has_found = has_found or bool(found)
        print(f"{name:28}{inputs:>12,}  {len(found) or 'nothing'}", flush=True)
        for path in found:
            print(f"  {_description(path)}", flush=True)
            print(f"  again: python -m tests.fuzz --repeat {name} {path}", flush=True)
    return 1 if has_found else 0


def _search(name: str, seconds: int) -> tuple[int, list[Path]]:
    """Search one target; return the number of inputs, and the files of those it found."""
    folder = KEPT / name
    (folder / "found").mkdir(parents=True, exist_ok=True)
    before, output = _findings(folder), folder / "log"
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(name, folder, seconds, output)
    )
    process.start()
    process.join(seconds + ENDING_S)
    if process.exitcode is None:  # an input that nothing inside could end
        process.kill()
        process.join()
        stuck = folder / "found" / f"stuck-{int(time.time())}.txt"
        stuck.write_text(f"{name} did not end in time; see {output}\n")
    printed = output.read_text("utf-8", "replace")
    if process.exitcode and not _findings(folder) - before:
        failed = folder / "found" / f"start-failed-{int(time.time())}.txt"
        failed.write_text(printed[-4000:])
    return _inputs(printed), sorted(_findings(folder) - before)


def _child(name: str, folder: Path, seconds: int, printed: Path) -> None:
    from tests.fuzz.guided import search

    output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    search(name, folder, seconds)


def _findings(folder: Path) -> set[Path]:
    return {
        path
        for path in (folder / "found").glob("*")
        if path.suffix != ".txt" or path.stem.startswith(("stuck", "start"))
    }


def _inputs(text: str) -> int:
    """The number of inputs, as libFuzzer prints it at its end, or last before it was killed."""
    final = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    if final:
        return int(final[1])
    return max((int(n) for n in re.findall(r"^#(\d+)\t", text, re.MULTILINE)), default=0)


def _description(path: Path) -> str:
    description = path.with_suffix(".txt")
    if description.exists():
        return description.read_text()[:400].strip()
    return path.name


if __name__ == "__main__":
    sys.exit(main())
