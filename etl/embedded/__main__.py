"""`python -m etl.embedded`: fetch or make everything that the embedded servers and Spark need in
the cache, once.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from etl.embedded.cache import cache_folder
from etl.embedded.class_archive import make_archive
from etl.embedded.jars import delta_jars
from etl.embedded.java import find_java
from etl.embedded.releases import release_jars
from etl.errors import EtlError


def main() -> int:
    """Fetch and make, say where, and return the exit code."""
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
    sys.exit(main())
