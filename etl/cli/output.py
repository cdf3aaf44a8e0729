"""What a command says: its one document or its screen on standard output, errors on standard error;
and where that cannot be written.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from etl.decide.run_requests import DOCUMENT_FILE
from etl.errors import EtlError, SettingsError, Stopped

if TYPE_CHECKING:
    from etl.console.json_lines import JsonLines

_printed: list[Any] = []
"""The document that was printed; there is never more than one."""
_lines: list[JsonLines] = []
"""Where standard error is JSON, what writes it; of a command inside another one (`etl run FOLDER`
in one process) the last.
"""


@contextlib.contextmanager
def begun(*, json_lines: bool) -> Iterator[None]:
    """Nothing was said yet; inside, standard error is JSON where that was asked for."""
    _printed.clear()
    if not json_lines:
        yield
        return
    from etl.console.json_lines import written

    with written() as lines:
        _lines.append(lines)
        try:
            yield
        finally:
            _lines.remove(lines)


def json_lines() -> JsonLines | None:
    """What writes standard error as JSON; None where it is text."""
    return _lines[-1] if _lines else None


def say(text: str) -> None:
    """One line on standard error, which no program needs."""
    lines = json_lines()
    if lines:
        lines.say("info", text)
    else:
        print(f"etl: {text}", file=sys.stderr)


def show(
    as_json: bool, document: Any, screen: Callable[[], None], *, is_done: bool = False
) -> None:
    """Print the result of a command. `is_done`: the command changed something, and that stays done
    where the result cannot be printed.
    """
    if as_json:
        print_json(document)
    else:
        screen()
    try:
        refuse_unshown()
    except Unshown as error:
        if not is_done:
            raise
        if not isinstance(error.refused, BrokenPipeError):
            tell(unwritable(error.refused), wants_json=False)


def confirm(says: Sequence[str], *, yes: bool, as_json: bool) -> None:
    """Show what would be done, and go on where a person says so, or said so before.

    Raises Stopped for any other answer, SettingsError where there is nobody to ask.
    """
    if yes:
        return
    if not is_attended(as_json=as_json):
        what = (
            "nothing was changed: there is no terminal to ask at. It would come to this: "
            + "; ".join(says)
        )
        raise SettingsError(what, key="--yes", check="what it says, then the same with --yes")
    print(*says, sep="\n")
    ask("do it?")


def is_attended(*, as_json: bool) -> bool:
    """Whether a person can be asked."""
    return not as_json and sys.stdin.isatty() and sys.stdout.isatty()


def ask(question: str) -> None:
    """Go on where a person says yes. Raises Stopped for any other answer."""
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Stopped("nothing was changed")


def refuse_unshown() -> None:
    """Once for each failure of standard output. Raises Unshown."""
    sys.stdout.flush()
    output: Any = sys.stdout
    refused, output.refused = output.refused, None
    if refused:
        raise Unshown(refused)


class Unshown(Exception):
    """Standard output could not be written, so who asked has no answer."""

    def __init__(self, refused: OSError) -> None:
        super().__init__(refused)
        self.refused = refused


class Output:
    """Standard output. Its first failure is kept, no library that prints sees it, and what is
    printed after it is dropped.

    It is the command's: what a function of the user's prints in a thread of its own goes to
    standard error, for programs read `--json`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread = stream, threading.current_thread()
        self.refused: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As of any stream."""
        if threading.current_thread() is not self._thread:
            return sys.stderr.write(text)
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """As of any stream."""
        self._try(self._stream.flush)

    def _try(self, output: Callable[[], object]) -> None:
        if self.refused:
            return
        try:
            output()
        except OSError as error:
            self.refused = error
            with contextlib.suppress(
                OSError, ValueError
            ):  # or Python would try once more at its end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def unwritable(refused: OSError) -> SettingsError:
    check = "the file or disk that it goes to; what the command did is done, and a run's report is in report.path"
    return SettingsError(f"standard output cannot be written: {refused.strerror}", check=check)


def print_json(document: Any) -> None:
    text = json.dumps(document, indent=2, default=str)
    if os.environ.get(DOCUMENT_FILE):
        _keep(text, os.environ[DOCUMENT_FILE])
    print(text)
    _printed.append(document)


def _keep(text: str, path: str) -> None:
    """Whole or not at all: who waits for it may look at any moment."""
    try:
        with open(f"{path}.part", "w") as file:
            file.write(text)
        os.replace(f"{path}.part", path)
    except OSError as error:
        print(
            f"etl: the document cannot be written to {path} ({DOCUMENT_FILE}): {error.strerror}",
            file=sys.stderr,
        )


def begun_document() -> None:
    """The one document is being printed: whatever ends it ends in it."""
    _printed.append(None)


def tell(error: EtlError, wants_json: bool) -> int:
    if wants_json and not _printed:
        print_json(error.as_json())
    lines = json_lines()
    if lines:
        lines.error(error)
        return error.exit_code
    places = ", ".join(f"{name} {value}" for name, value in error.where.items())
    first, *more = error.what.splitlines() or [""]
    with contextlib.suppress(OSError):  # nobody reads it any more: the exit code says it
        print(
            f"etl: {first}" + (f" ({places})" if places else ""),
            *(f"       {line}" for line in more),
            sep="\n",
            file=sys.stderr,
        )
        if error.check:
            print(f"     check: {error.check}", file=sys.stderr)
        if error.retriable:
            print("     a retry may help", file=sys.stderr)
    return error.exit_code
