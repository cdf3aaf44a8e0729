"""`python -m etl`: the command `etl`, where its script is not on the path."""

import sys

from etl.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
