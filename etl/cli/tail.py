"""`etl tail`: the records of a group's share, for a person."""

from __future__ import annotations

from typing import Annotated

import typer

from etl.cli.arguments import Conf, settings_of
from etl.cli.output import begun_document, refuse_unshown, say
from etl.errors import EtlError, Stopped
from etl.model.membership import Membership
from etl.settings.policies import StartAt


def tail(
    conf: Conf,
    topics: Annotated[list[str] | None, typer.Argument(
        metavar="[TOPIC]...", help="Topics of the conf's cluster; those of the conf by default.", show_default=False)] = None,
    group: Annotated[str, typer.Option(
        metavar="GROUP", help="The group to join; not the pipeline's own.", show_default=False)] = ...,  # type: ignore[assignment]
    membership: Annotated[Membership | None, typer.Option(
        show_default=False, help="Who says which member reads what; by default ZooKeeper where the brokers are found there, else their "
        "coordinator.")] = None,
    strategy: Annotated[str, typer.Option(help="How the group's members divide its partitions: as its other members do.")] = "range",
    protocol: Annotated[str, typer.Option(help="With a coordinator: classic, or consumer (KIP-848).")] = "classic",
    start: Annotated[StartAt, typer.Option(help="Where a partition begins of which the group has no offset.")] = StartAt.LATEST,
    commit: Annotated[bool, typer.Option(
        "--commit", help="The group goes on behind what was shown; otherwise nothing is committed, and others read it again.")] = False,
    most: Annotated[int | None, typer.Option(
        "-n", "--most", min=1, help="How many records; without end by default.", show_default=False)] = None,
    timeout: Annotated[float | None, typer.Option(
        min=0.1, show_default=False, help="Seconds to wait for the next record; without end by default.")] = None,
    decoder: Annotated[str, typer.Option(
        metavar="NAME", help="Who reads values: text, json, hex, base64, int, or package.module:function, a function of bytes.")] = "text",
    key_decoder: Annotated[str, typer.Option(metavar="NAME", help="Who reads keys.")] = "text",
    whole: Annotated[bool, typer.Option("--whole", help="Show long keys and values to their end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, a record in each line of it, nothing cut.")] = False,
) -> None:
    """Join a group and show the records of the share that it gives, until -n, --timeout or Ctrl-C; its other members lack them."""
    from etl.commands.decoders import decoder_of
    from etl.commands.peeked_log import Ended
    from etl.commands.tail import Wanted, open_tail
    from etl.console.records import Decoding
    from etl.console.tailed import TailDocument, TailLines

    decoding = Decoding(decoder_of(key_decoder), decoder_of(decoder), whole)
    wanted = Wanted(group, tuple(topics or ()), membership, strategy, protocol, start, most, timeout, commit)
    with open_tail(settings_of(conf), wanted) as tailed:
        screen = TailDocument(decoding) if as_json else TailLines(decoding, say)
        screen.begin(tailed)
        if as_json:
            begun_document()
        try:
            for record in tailed.records():
                screen.show(record)
                refuse_unshown()
        except KeyboardInterrupt:
            tailed.ended = Ended.STOPPED
            screen.end(tailed)
            tailed.commit()
            raise Stopped("stopped; the group goes on behind what was shown" if commit else
                          "stopped; the group's other members have everything again") from None
        except EtlError as failure:
            screen.end(tailed, failure)
            raise
        screen.end(tailed)
        refuse_unshown()
