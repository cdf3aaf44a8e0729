"""`python -m tests.soak [--kills 60] [--seed S]`, or `--fast [--minutes M] [--seed S]`: random
kills, and a check that knows no ledger.
"""

from __future__ import annotations

import argparse
import random
import sys


def main(arguments: list[str]) -> int:
    """0: nothing lost, nothing double."""
    request = _parser().parse_args(arguments)
    seed = random.SystemRandom().randrange(10**9) if request.seed is None else request.seed
    if request.fast:
        from tests.soak import fast

        return fast.main(
            seed=seed,
            minutes=request.minutes,
            story=request.story,
            every_moment=request.every_moment,
            jobs=request.jobs,
        )
    from tests.soak import real

    return real.main(seed=seed, kills=request.kills)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="repeats what another run did; a new one is printed"
    )
    parser.add_argument("--kills", type=int, default=60, help="SIGKILLs of the real process")
    parser.add_argument(
        "--fast",
        action="store_true",
        help="without brokers and Spark: thousands of interrupted runs a minute",
    )
    parser.add_argument("--minutes", type=float, default=5, help="how long, with --fast")
    parser.add_argument("--jobs", type=int, help="processes, with --fast; one per core by default")
    parser.add_argument("--story", type=int, help="only this story of the seed, with --fast")
    parser.add_argument(
        "--every-moment", action="store_true", help="each moment in turn, with --fast"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
