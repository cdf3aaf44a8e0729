"""spark-submit jobs/ingest.py CONF: the command `etl run`, inside the session that spark-submit
made.
"""

import sys

from etl.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
