"""Fixtures of the system tests: a Python for Spark's workers that has the libraries, but not this package."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

# Without `site`, .pth files are not read, and through such a file an editable install puts this package on the path.
_SCRIPT = """#!/bin/sh
PYTHONPATH="{libraries}${{PYTHONPATH:+:$PYTHONPATH}}" exec "{python}" -S "$@"
"""


@pytest.fixture(scope="session")
def python_without_the_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `python` as on a worker that somebody else installed. What `--py-files` brings it still sees."""
    script = tmp_path_factory.mktemp("bare") / "python"
    script.write_text(_SCRIPT.format(libraries=sysconfig.get_path("purelib"), python=sys.executable))
    script.chmod(0o755)
    return script
