"""spark-submit jobs/backfill.py CONF ...: the command `etl backfills run`, inside the session
that spark-submit made.
"""

import sys

from etl.cli import main

if __name__ == "__main__":
    sys.exit(main(["backfills", "run", *sys.argv[1:]]))
