"""How long a new worker takes to its first decoded record, where the package comes as a zip: with
compiled kernels in it, and without.

    python bench/first_decode.py [--rounds 5]

Each time a new process with an empty home folder, as on a host that never ran this; medians, in
seconds. "Imports" is what both need.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etl.commands.package import compiled_kernels, write_zip  # noqa: E402

PROGRAM = """
import time
began = time.perf_counter()
import etl.reader.source, etl.reader.fetch
from etl.commands.package import compiled_kernels
from etl.records import compiled
imported = time.perf_counter()
kept = compiled_kernels()
print(imported - began, time.perf_counter() - imported, len(kept))
"""


def first_decode(zipped: Path, home: Path) -> tuple[float, float]:
    """Seconds for the imports, and for one decoded answer of each message format."""
    home.mkdir()
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in ("XDG_CACHE_HOME", "PYTHONDONTWRITEBYTECODE")
        },
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join((str(zipped), sysconfig.get_path("purelib"))),
    }
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    imports, decode, _ = map(float, done.stdout.split())
    return imports, decode


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    rounds = arguments.parse_args().rounds
    kernels = compiled_kernels()
    with tempfile.TemporaryDirectory() as folder:
        zips = {
            "with kernels": write_zip(Path(folder, "with.zip"), kernels),
            "without": write_zip(Path(folder, "without.zip"), ()),
        }
        for name, zipped in zips.items():
            found = [
                first_decode(zipped, Path(folder, f"{name} {number}")) for number in range(rounds)
            ]
            imports, decode = (statistics.median(column) for column in zip(*found, strict=True))
            print(
                f"{name:>12}: {zipped.stat().st_size / 1e6:.2f} MB, imports {imports:.2f} s, "
                f"first decode {decode:.2f} s"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
