"""spark-submit jobs/backfill.py CONF --name ...: the command `etl backfill`, inside the session
that spark-submit made.
"""

import sys

from etl.cli import main

if __name__ == "__main__":
    sys.exit(main(["backfill", *sys.argv[1:]]))
