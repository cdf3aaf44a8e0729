"""`python -m tests.soak [--minutes M] [--seed S]`: thousands of interrupted runs a minute, and a check
that knows no ledger.
"""

from __future__ import annotations

import argparse
import random
import sys

from tests.soak import fast


def main(arguments: list[str]) -> int:
    """0: nothing lost, nothing double."""
    request = _parser().parse_args(arguments)
    return fast.main(
        seed=random.SystemRandom().randrange(10**9) if request.seed is None else request.seed,
        minutes=request.minutes,
        story=request.story,
        every_moment=request.every_moment,
        jobs=request.jobs,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="repeats what another run did; a new one is printed"
    )
    parser.add_argument("--minutes", type=float, default=5, help="how long")
    parser.add_argument("--jobs", type=int, help="processes; one per core by default")
    parser.add_argument("--story", type=int, help="only this story of the seed")
    parser.add_argument("--every-moment", action="store_true", help="each moment in turn")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
