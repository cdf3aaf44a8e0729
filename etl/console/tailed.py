"""Records of a group's share as they come: a line each for a person, or one JSON document that
grows while it is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from etl.commands.peek import TailedGroup
from etl.console.records import Decoding, document_of, fields_of
from etl.errors import EtlError
from etl.report.describe import counted
from etl.streams.records import Record


class TailLines:
    """A line for each record: topic, partition, and then as `records.Lines`."""

    def __init__(self, decoding: Decoding, say: Callable[[str], None]) -> None:
        """say   takes what is said beside the records, at the beginning and the end"""
        self._decoding, self._say = decoding, say

    def begin(self, tailed: TailedGroup) -> None:
        """Before it joins."""
        self._say(f"as a member of {tailed.group}: {', '.join(tailed.topics)}")

    def show(self, record: Record) -> None:
        """One record."""
        print(record.topic, record.log.key, *fields_of(record, self._decoding), sep="\t")

    def end(self, tailed: TailedGroup, failure: EtlError | None = None) -> None:
        """Behind the last record."""
        self._say(
            f"{counted(tailed.given, 'record')}{f'; {tailed.ended.value}' if tailed.ended else ', up to what follows'}"
        )


class TailDocument:
    """The same as one JSON document, a record in each line of it."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding, self._shown = decoding, 0

    def begin(self, tailed: TailedGroup) -> None:
        """Before it joins."""
        head = json.dumps({"group": tailed.group, "topics": tailed.topics})
        print(f'{head[:-1]}, "records": [')

    def show(self, record: Record) -> None:
        """One record."""
        document = {**record.log.place, **document_of(record, self._decoding)}
        print(
            "," if self._shown else " ", json.dumps(document, default=str)
        )  # with its line's end, for who follows
        self._shown += 1

    def end(self, tailed: TailedGroup, failure: EtlError | None = None) -> None:
        """Behind the last record; `failure` is what ended it."""
        tail = {
            "shown": tailed.given,
            "ended": tailed.ended.value if tailed.ended else None,
            **({"error": failure.as_json()} if failure else {}),
        }
        print(f"], {json.dumps(tail)[1:]}")
