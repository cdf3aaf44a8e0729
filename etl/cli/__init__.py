"""The command line: arguments, output, exit codes.

Each command loads the settings, calls one function of `commands`, and prints the value that it
returns, as one JSON document with `--json`. Heavy modules are imported inside the command.

    0 done, or nothing to do                     4 another driver or consumer is active (retry)
    1 a bug                                      5 an operator must decide
    2 conf, argument or what it names: invalid   6 ZooKeeper, a broker or Spark unavailable (retry)
    3 with --fail-on-loss: records were lost     7 the table cannot be read or written (retry)
    8 not complete yet (retry later)             9 rows are missing or duplicated
    130 interrupted by Ctrl-C, SIGTERM or SIGHUP; 143: by a second SIGTERM
    141 standard output was closed
"""

from etl.cli.app import main

__all__ = ["main"]
