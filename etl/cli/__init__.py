"""The command line.

The command line: `etl compact | complete | demo | doctor | init | intervals | lag | maintain |
package | peek | plan | replay | report | run | schema | tail | verify | backfill begin, resume,
list, show, abandon | offsets show, diff, set, restore, pause, resume | pipelines list, retire,
resume, set-acl | plans list, show, supersede, acknowledge, take-over, accept-log | table resolve`.

Each command loads the settings, calls one function of `commands`, and shows the value that comes
back: with `--json` as one document on standard output, else for a person (`console`). Everything
heavy is imported inside the command that needs it. Exit codes:

    0 done, nothing to do, or already applied        4 owned by another driver or consumer (retry)
    1 a bug                                          5 a person must decide
    2 settings or arguments, or what they point at   6 ZooKeeper, a broker or Spark went away (retry)
    3 with --strict: records were lost               7 the table cannot be reached or written (retry)
    130 stopped by Ctrl-C or SIGTERM                 141 whoever read standard output is gone; nothing was changed

What a person sees on a terminal. Nothing is computed here that `--json` does not have too.
"""

from etl.cli.app import main

__all__ = ["main"]
