"""spark-submit jobs/verify.py CONF: the command `etl verify`, inside the session that spark-submit
made.
"""

import sys

from etl.cli import main

if __name__ == "__main__":
    sys.exit(main(["verify", *sys.argv[1:]]))
