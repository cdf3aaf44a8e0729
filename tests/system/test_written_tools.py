"""Tools of the tests that pages name: each command works as written, on small input or up to its
start.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page_commands import ELSEWHERE

ROOT = Path(__file__).parents[2]
SMALL = {
    "python -m tests.picture": ["--records", "2000", "--to", "picture.png"],
    "python tests/bench/first_decode.py": ["--rounds", "1"],
    "PYTHONPATH=. python tests/bench/spark_start.py": ["1"],
    "pytest -m long": ["--collect-only", "-q"],
    'pytest -m "not long" --numprocesses=3 --dist=loadfile tests/brokers': [
        "--collect-only",
        "-q",
        "-p",
        "no:xdist",
    ],
}
"""Extra arguments that keep it small; the others get --help."""
TOOLS = [
    text for text, runs in ELSEWHERE.items() if runs.file == "tests/system/test_written_tools.py"
]


@pytest.mark.long
@pytest.mark.parametrize("text", TOOLS)
def test_a_tool_that_a_page_names_begins_with_the_words_that_are_there(
    text: str, tmp_path: Path
) -> None:
    words = [word for word in shlex.split(text) if not word.startswith("PYTHONPATH=")]
    more = [
        str(tmp_path / word) if word.endswith(".png") else word
        for word in SMALL.get(text, ["--help"])
    ]
    if "no:xdist" in more:
        words = [word for word in words if not word.startswith(("--numprocesses", "--dist"))]
    program = [sys.executable, "-m", "pytest"] if words[0] == "pytest" else [sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*program, *words[1:], *more], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
