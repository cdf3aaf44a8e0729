"""spark-submit jobs/maintain.py CONF --yes: the command `etl table maintain`, inside the session that
spark-submit made.
"""

import sys

from etl.cli import main

if __name__ == "__main__":
    sys.exit(main(["table", "maintain", *sys.argv[1:]]))
