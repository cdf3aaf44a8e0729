"""Which arguments do `etl peek` and `etl tail` take?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from etl.cli.common_options import Conf, begun_document, raise_output_failure, say, settings_of
from etl.cli.operator_commands import WHERE, parse_where
from etl.errors import EtlError, Stopped
from etl.model.partitions import Membership
from etl.settings.choices import StartAt

if TYPE_CHECKING:
    from etl.commands.peek import Ended, TailedGroup


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
    """Iterates over records to print."""

    ended: Ended | None

    def records(self) -> Iterator[R_co]:
        """Each record, until there is no more to show."""


class Screen(Protocol[R_contra]):
    """How it is shown: one of `cli.record_screens`, or of `cli.record_screens`."""

    def begin(self, looked: Any, /) -> None:
        """Before the first record."""

    def show(self, record: R_contra, /) -> None:
        """One record."""

    def end(self, looked: Any, failure: EtlError | None = None, /) -> None:
        """Finish after the last record."""


def show_records(
    looked: Looked[R], screen: Screen[R], *, as_json: bool, stop: Callable[[], str]
) -> None:
    """Print each record, and at Ctrl-C what was printed so far; `stop` is called then, and returns
    a closing note. Raises Stopped, reading errors, and failures of standard output.
    """
    from etl.commands.peek import Ended

    screen.begin(looked)
    if as_json:
        begun_document()
    try:
        for record in looked.records():
            screen.show(record)
            raise_output_failure()
    except KeyboardInterrupt:
        looked.ended = Ended.STOPPED
        screen.end(looked)
        raise Stopped(f"stopped; {stop()}") from None
    except EtlError as failure:
        screen.end(looked, failure)
        raise
    screen.end(looked)
    raise_output_failure()


_MOST, _TIMEOUT_S = 10, 10.0


def peek(
    conf: Conf,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="Any topic of the conf's cluster.", show_default=False
        ),
    ],
    partition: Annotated[
        str,
        typer.Argument(
            metavar="PARTITION",
            help="A number; of a Jafka BROKER-PARTITION, e.g. 0-3.",
            show_default=False,
        ),
    ],
    start: Annotated[str, typer.Option("--from", metavar="WHERE", help=f"{WHERE}.")] = "earliest",
    most: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--most",
            min=1,
            help=f"How many records; {_MOST} by default, all with --follow.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Wait for what comes, until -n, --timeout or Ctrl-C."),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            show_default=False,
            help=f"Seconds to wait for the next record; {_TIMEOUT_S:g} by default, without end with --follow.",
        ),
    ] = None,
    decoder: ValueDecoder = "text",
    key_decoder: KeyDecoder = "text",
    whole: Whole = False,
    as_json: RecordsAsJson = False,
) -> None:
    """Show the records of one partition, from an offset or a time; nothing is stored or moved."""
    from etl.cli.record_screens import Decoding, Document, Lines
    from etl.commands.peek import PeekRequest, decoder_of, open_peek

    decoding = Decoding(decoder_of(key_decoder), decoder_of(decoder), whole)
    most = most or (None if follow else _MOST)
    timeout_s = timeout or (None if follow else _TIMEOUT_S)
    with open_peek(
        settings_of(conf),
        PeekRequest(topic, partition, parse_where(start, "--from"), most, follow, timeout_s),
    ) as peeked:
        screen = Document(decoding) if as_json else Lines(decoding, say)
        show_records(peeked, screen, as_json=as_json, stop=lambda: "nothing was changed")


def tail(
    conf: Conf,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="Topics of the conf's cluster; those of the conf by default.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str,
        typer.Option(
            metavar="GROUP", help="The group to join; not the pipeline's own.", show_default=False
        ),
    ] = ...,  # type: ignore[assignment]
    membership: Annotated[
        Membership | None,
        typer.Option(
            show_default=False,
            help="Who says which member reads what; by default ZooKeeper where the brokers are found there, else their "
            "coordinator.",
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            help="How the group's members divide its partitions: as its other members do."
        ),
    ] = "range",
    protocol: Annotated[
        str, typer.Option(help="With a coordinator: classic, or consumer (KIP-848).")
    ] = "classic",
    start: Annotated[
        StartAt, typer.Option(help="Where a partition begins of which the group has no offset.")
    ] = StartAt.LATEST,
    commit: Annotated[
        bool,
        typer.Option(
            "--commit",
            help="The group goes on behind what was shown; otherwise nothing is committed, and others read it again.",
        ),
    ] = False,
    most: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--most",
            min=1,
            help="How many records; without end by default.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            show_default=False,
            help="Seconds to wait for the next record; without end by default.",
        ),
    ] = None,
    decoder: ValueDecoder = "text",
    key_decoder: KeyDecoder = "text",
    whole: Whole = False,
    as_json: RecordsAsJson = False,
) -> None:
    """Join a group and show the records of the share that it gives, until -n, --timeout or Ctrl-C;
    its other members lack them.
    """
    from etl.cli.record_screens import Decoding, TailDocument, TailLines
    from etl.commands.peek import TailRequest, decoder_of, open_tail

    decoding = Decoding(decoder_of(key_decoder), decoder_of(decoder), whole)
    wanted = TailRequest(
        group, tuple(topics or ()), membership, strategy, protocol, start, most, timeout, commit
    )
    with open_tail(settings_of(conf), wanted) as tailed:
        screen = TailDocument(decoding) if as_json else TailLines(decoding, say)
        show_records(tailed, screen, as_json=as_json, stop=lambda: _left(tailed, commits=commit))


def _left(tailed: TailedGroup, *, commits: bool) -> str:
    tailed.commit()
    return (
        "the group goes on behind what was shown"
        if commits
        else "the group's other members have everything again"
    )
