"""spark-submit jobs/replay.py CONF --topic ... --yes: the command `etl replay`, inside the session
that spark-submit made.
"""

import sys

from etl.cli import main

if __name__ == "__main__":
    sys.exit(main(["replay", *sys.argv[1:]]))
