"""`python -m etl.testkit`: fetch or make what the servers and Spark need, once, into the cache."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from etl.errors import EtlError
from etl.testkit.brokers import release_jars
from etl.testkit.class_archive import make_archive
from etl.testkit.java_and_jars import cache_folder, delta_jars, find_java


def main(arguments: Sequence[str]) -> int:
    """Fetch and build all files, print their paths, and return the exit code."""
    if arguments:
        print(f"usage: python -m etl.testkit\n{__doc__}", file=sys.stderr)
        return 2
    try:
        print(f"java: {find_java()}")
        print(f"jars: {cache_folder() / 'jars'} (60 MB, fetched once)", flush=True)
        with ThreadPoolExecutor() as fetches:  # each waits for Maven Central, not for the processor
            for fetch in [fetches.submit(release_jars), fetches.submit(delta_jars)]:
                fetch.result()
        print(
            "classes: an archive that lets Spark start quickly (200 MB, made once, half a minute)",
            flush=True,
        )
        make_archive()
    except EtlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
