"""`etl tail`: the records of a group's share, for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.arguments import Conf, settings_of
from etl.cli.output import say
from etl.cli.records import KeyDecoder, RecordsAsJson, ValueDecoder, Whole, show_records
from etl.model.partitions import Membership
from etl.settings.choices import StartAt

if TYPE_CHECKING:
    from etl.commands.peek import TailedGroup


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
    from etl.commands.peek import TailRequest, decoder_of, open_tail
    from etl.console.records import Decoding
    from etl.console.tailed import TailDocument, TailLines

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
