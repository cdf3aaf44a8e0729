"""The command line: arguments, output, exit codes.

`etl compact | complete | demo | doctor | init | intervals | lag | maintain | package | peek | plan
| replay | report | run | schema | tail | verify | backfill begin, resume, list, show, abandon |
offsets show, diff, set, restore, pause, resume | pipelines list, retire, resume, set-acl | plans
list, show, supersede, acknowledge, take-over, accept-log | table resolve`.

Each command loads the settings, calls one function of `commands`, and prints the value that it
returns, as one JSON document with `--json`. Heavy modules are imported inside the command.

    0 done, or nothing to do                     4 another driver or consumer is active (retry)
    1 a bug                                      5 an operator must decide
    2 conf, argument or what it names: invalid   6 ZooKeeper, a broker or Spark unavailable (retry)
    3 with --strict: records were lost           7 the table cannot be read or written (retry)
    130 interrupted by Ctrl-C or SIGTERM         141 standard output was closed
"""

from etl.cli.app import main

__all__ = ["main"]
