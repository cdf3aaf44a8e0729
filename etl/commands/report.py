"""How is the HTML page of a run's report written and opened?

Not here: the content of the page (etl/report/page.py).
"""

from __future__ import annotations

import os
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.errors import SettingsError
from etl.io.report_files import newest_report, write_page
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Page:
    """An HTML page and its report."""

    path: Path
    report: Path
    run_id: str
    state: str
    exit_code: int | None

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl report`."""
        return {
            "path": str(self.path),
            "report": str(self.report),
            "run_id": self.run_id,
            "state": self.state,
            "exit_code": self.exit_code,
        }


def report_page(settings: Settings, run_id: str | None = None, out: Path | None = None) -> Page:
    """Write the page of a run, by default the last one, next to its report or to `out`.

    Sends no request to a server. Raises SettingsError for a missing or invalid report, and if the
    page cannot be written.
    """
    folder = Path(settings.report.path)
    path, report = newest_report(folder, settings.name_in_files, run_id)
    page = (out or path.with_suffix(".html")).absolute()
    try:
        write_page(page, report, folder)
        return Page(page, path, report["run_id"], report["state"], report["exit_code"])
    except OSError as error:
        raise SettingsError(
            f"The page cannot be written: {error.strerror}",
            path=page,
            action="Pass --output with a file that can be written",
        ) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = f"The report is not that of a run: {type(error).__name__}: {error}"
        raise SettingsError(
            message,
            path=path,
            action="Check who changed the file; `etl report CONF --run RUN` shows another run",
        ) from error


def has_display() -> bool:
    """True if the machine can show a graphical browser. One in the terminal would occupy it."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def open_in_browser(page: Path) -> bool:
    """Open the page; True if a browser accepted it."""
    return webbrowser.open(page.as_uri())
