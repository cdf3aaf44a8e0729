"""Which arguments do `etl records show` and `etl records consume` take?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from etl.cli.common_options import (
    POSITION,
    Commands,
    Conf,
    OutputFailed,
    begin_document,
    print_note,
    raise_output_failure,
    settings_of,
    single,
)
from etl.cli.operator_commands import parse_where
from etl.decide.run_requests import duration
from etl.errors import EtlError, SettingsError, Stopped, follows_interrupt
from etl.settings.choices import StartAt

if TYPE_CHECKING:
    from etl.commands.peek import Ended, Start, TailedGroup


_MAX_RECORDS = 10
_TIMEOUT_S = 10.0

OnePartition = Annotated[
    list[str],
    typer.Option(
        "--partition",
        "-p",
        metavar="PARTITION",
        help="clicks:3, on Jafka clicks:1-3.",
        show_default=False,
    ),
]
ValueFormat = Annotated[
    str,
    typer.Option(metavar="FORMAT", help="text, json, hex, base64, int or module:function."),
]
KeyFormat = Annotated[str, typer.Option(metavar="FORMAT", help="As --value-format.")]
NoTruncate = Annotated[bool, typer.Option("--no-truncate", help="Print long values in full.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records.")]
Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        show_default=False,
        help=(
            f"Stop after this long without a record. Default: {_TIMEOUT_S:g}s; "
            "with --follow, and for consume: never."
        ),
    ),
]
RecordsAsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document, with a record per line."),
]

records = Commands(rich_markup_mode=None, help="Print records of topics.")

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class RecordSource(Protocol[R_co]):
    """Iterates over records to print."""

    ended: Ended | None

    def records(self) -> Iterator[R_co]:
        """Yield each record to print."""


class Screen(Protocol[R_contra]):
    """Prints the records; see `record_screens`."""

    def begin(self, source: Any, /) -> None:
        """Print what comes before the first record."""

    def show(self, record: R_contra, /) -> None:
        """Print one record."""

    def end(self, source: Any, failure: EtlError | None = None, /) -> None:
        """Print what comes after the last record."""


def show_records(
    source: RecordSource[R], screen: Screen[R], *, as_json: bool, stop: Callable[[], str]
) -> None:
    """Print each record. At Ctrl-C call `stop`, which returns a closing note.

    Raises Stopped, errors of reading, and OutputFailed.
    """
    from etl.commands.peek import Ended

    screen.begin(source)
    if as_json:
        begin_document()
    try:
        for record in source.records():
            screen.show(record)
            raise_output_failure()
    except BaseException as failure:
        if follows_interrupt(failure):
            source.ended = Ended.STOPPED
            screen.end(source)
            raise_output_failure()
            raise Stopped(f"Stopped. {stop()}") from None
        if isinstance(failure, EtlError):
            screen.end(source, failure)
            raise_output_failure()
        raise
    screen.end(source)
    raise_output_failure()


MaxRecords = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--max-records",
        min=1,
        metavar="N",
        help=f"Default: {_MAX_RECORDS}; with --follow, and for consume: all.",
        show_default=False,
    ),
]


@records.command("show")
def records_show(
    conf: Conf,
    partition: OnePartition,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help=f"Start: {POSITION}. Default: earliest.",
            show_default=False,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Start N offsets before the end, instead of --from.",
            show_default=False,
        ),
    ] = None,
    max_records: MaxRecords = None,
    timeout: Timeout = None,
    follow: Follow = False,
    value_format: ValueFormat = "text",
    key_format: KeyFormat = "text",
    no_truncate: NoTruncate = False,
    as_json: RecordsAsJson = False,
) -> None:
    """Print records of a partition."""
    from etl.cli.record_screens import Decoding, Document, Lines
    from etl.commands.peek import PeekRequest, decoder_of, open_peek
    from etl.settings.source import BeforeEnd

    decoding = Decoding(
        decoder_of(key_format, "--key-format"),
        decoder_of(value_format, "--value-format"),
        no_truncate,
    )
    position: Start
    if last is None:
        position = parse_where(start or StartAt.EARLIEST.value, "--from")
    elif start is None:
        position = BeforeEnd(last)
    else:
        raise SettingsError(
            "--from and --last both set the start", action="Leave one of the two out"
        )
    timeout_s = _seconds(timeout)
    if not follow:
        max_records = max_records or last or _MAX_RECORDS
        if timeout_s is None:
            timeout_s = _TIMEOUT_S
    request = PeekRequest(single(partition), position, max_records, follow, timeout_s)
    with open_peek(settings_of(conf), request) as peeked:
        screen = Document(decoding) if as_json else Lines(decoding, print_note)
        show_records(peeked, screen, as_json=as_json, stop=lambda: "Nothing was changed")


@records.command("consume")
def records_consume(
    conf: Conf,
    group: Annotated[
        str,
        typer.Option(
            metavar="GROUP",
            help="Never the pipeline's own: it would take its partitions.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Repeatable. Default: all of the conf."),
    ] = None,
    commit: Annotated[bool, typer.Option("--commit", help="Commit what was printed.")] = False,
    offset_reset: Annotated[
        StartAt, typer.Option(help="Start of partitions without a committed offset.")
    ] = StartAt.LATEST,
    max_records: MaxRecords = None,
    timeout: Timeout = None,
    value_format: ValueFormat = "text",
    key_format: KeyFormat = "text",
    no_truncate: NoTruncate = False,
    as_json: RecordsAsJson = False,
) -> None:
    """Join a group and print the records assigned to it."""
    from etl.cli.record_screens import Decoding, TailDocument, TailLines
    from etl.commands.peek import TailRequest, decoder_of, open_tail

    decoding = Decoding(
        decoder_of(key_format, "--key-format"),
        decoder_of(value_format, "--value-format"),
        no_truncate,
    )
    request = TailRequest(
        group, tuple(topic or ()), offset_reset, max_records, _seconds(timeout), commits=commit
    )
    with open_tail(settings_of(conf), request) as tailed:
        screen = TailDocument(decoding) if as_json else TailLines(decoding, print_note)
        try:
            show_records(
                tailed, screen, as_json=as_json, stop=lambda: _leave(tailed, commits=commit)
            )
        except OutputFailed:
            # What was printed may not have been read.
            tailed.drop_uncommitted()
            raise


def _seconds(timeout: str | None) -> float | None:
    """Return the value of --timeout; None without the option. Raises SettingsError."""
    if timeout is None:
        return None
    return duration(timeout, "--timeout").total_seconds()


def _leave(tailed: TailedGroup, *, commits: bool) -> str:
    tailed.commit()
    if commits:
        return "The group continues after the printed records"
    return "The partitions are assigned to the other members of the group again"
