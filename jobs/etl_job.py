"""spark-submit jobs/etl_job.py COMMAND CONF ...: runs `etl COMMAND CONF ...` in the session that
spark-submit started.
"""

import sys

from etl.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
