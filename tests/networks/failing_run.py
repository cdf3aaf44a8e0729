"""`python -m tests.networks.failing_run CONF VERB`: a run with a bug at the start of VERB."""

from __future__ import annotations

import logging
import sys
import traceback

from etl.commands.run import run
from etl.settings.load import load_settings
from tests.system.driving import Before


def broken() -> None:
    raise RuntimeError("a bug of this test's")


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    try:
        run(load_settings(sys.argv[1]), around=Before(sys.argv[2], broken))
    except Exception as error:
        traceback.print_exc()
        print(repr(error), error.args, file=sys.stderr)
        sys.exit(1)
