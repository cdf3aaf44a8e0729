"""`etl peek`: the records of one partition, for a person."""

from __future__ import annotations

from typing import Annotated

import typer

from etl.cli.arguments import Conf, settings_of
from etl.cli.offsets import WHERE, parse_where
from etl.cli.output import say
from etl.cli.records import KeyDecoder, RecordsAsJson, ValueDecoder, Whole, show_records

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
    from etl.commands.peek import PeekRequest, decoder_of, open_peek
    from etl.console.records import Decoding, Document, Lines

    decoding = Decoding(decoder_of(key_decoder), decoder_of(decoder), whole)
    most = most or (None if follow else _MOST)
    timeout_s = timeout or (None if follow else _TIMEOUT_S)
    with open_peek(
        settings_of(conf),
        PeekRequest(topic, partition, parse_where(start, "--from"), most, follow, timeout_s),
    ) as peeked:
        screen = Document(decoding) if as_json else Lines(decoding, say)
        show_records(peeked, screen, as_json=as_json, stop=lambda: "nothing was changed")
