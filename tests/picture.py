"""The picture of a run's page in README: the demo is played, and the page of its largest run is
shown to Chromium.

    python -m tests.picture [--records 200000] [--page PAGE] [--to docs/images/report.png]

`--page` takes a page that is there instead, as `etl report CONF` makes it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from etl.demo.story import run_demo
from tests.browser import chromium

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 1100, 1250
"""The visible part of the page: its width, and the top part that shows how a run ended."""
MOST_BYTES = 300_000


def largest_run(reports: Path) -> Path:
    """The page of the run that read most."""
    reported = {path: json.loads(path.read_text()) for path in reports.glob("*.json")}
    return max(reported, key=lambda path: int(reported[path]["records_read"])).with_suffix(".html")


def picture_of(page: Path) -> bytes:
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
        shown = browser.show(page.absolute(), WIDTH, "light", HEIGHT)
        return shown.picture(most_height=HEIGHT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "images" / "report.png")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.page is None:
            run_demo(records=arguments.records, folder=Path(folder, "demo"), quiet=True)
        picture = picture_of(arguments.page or largest_run(Path(folder, "demo", "reports")))
    if len(picture) > MOST_BYTES:
        print(
            f"{len(picture):,} bytes are too many for a page that is read everywhere",
            file=sys.stderr,
        )
        return 1
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    arguments.to.write_bytes(picture)
    print(f"{arguments.to}: {len(picture):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
