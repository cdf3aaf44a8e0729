"""What `peek` and `tail` take to show records, and how they show them as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from etl.cli.output import begun_document, refuse_unshown
from etl.errors import EtlError, Stopped

if TYPE_CHECKING:
    from etl.commands.peek import Ended

ValueDecoder = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Who reads values: text, json, hex, base64, int, or package.module:function, a function of bytes.",
    ),
]
KeyDecoder = Annotated[str, typer.Option(metavar="NAME", help="Who reads keys.")]
Whole = Annotated[bool, typer.Option("--whole", help="Show long keys and values to their end.")]
RecordsAsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON document, a record in each line of it, nothing cut."
    ),
]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class Looked(Protocol[R_co]):
    """What is looked at, record after record."""

    ended: Ended | None

    def records(self) -> Iterator[R_co]:
        """Each record, until there is no more to show."""


class Screen(Protocol[R_contra]):
    """How it is shown: one of `console.records`, or of `console.tailed`."""

    def begin(self, looked: Any, /) -> None:
        """Before the first record."""

    def show(self, record: R_contra, /) -> None:
        """One record."""

    def end(self, looked: Any, failure: EtlError | None = None, /) -> None:
        """Behind the last record."""


def show_records(
    looked: Looked[R], screen: Screen[R], *, as_json: bool, stop: Callable[[], str]
) -> None:
    """Show each record as it comes, and at Ctrl-C what was shown by then; `stop` is called then,
    and says what is left behind.

    Raises Stopped, what reading them ends with, and that nobody takes what is shown.
    """
    from etl.commands.peek import Ended

    screen.begin(looked)
    if as_json:
        begun_document()
    try:
        for record in looked.records():
            screen.show(record)
            refuse_unshown()
    except KeyboardInterrupt:
        looked.ended = Ended.STOPPED
        screen.end(looked)
        raise Stopped(f"stopped; {stop()}") from None
    except EtlError as failure:
        screen.end(looked, failure)
        raise
    screen.end(looked)
    refuse_unshown()
