"""`--log-format`, which every command takes: standard error as text for a person, or as one JSON
object a line for a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_FLAG = "--log-format"
_HELP = "What standard error is: text, or json: one object a line, with time, level, message, pipeline, run_id, verb and plan."


class LogFormat(str, Enum):
    """What standard error is."""

    TEXT = "text"
    JSON = "json"


class CommandGroup(TyperGroup):
    """The commands; each of them, and of their families, takes the option."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        option = _option()
        for command in _leaves(self):
            command.params.append(option)


def _option() -> Any:
    """As typer makes it. No command gets its value: the door has looked for it before any command
    began.
    """
    made = typer.Typer(add_completion=False)

    @made.command()
    def takes(
        log_format: Annotated[LogFormat, typer.Option(_FLAG, help=_HELP)] = LogFormat.TEXT,
    ) -> None:
        """Nothing but that."""

    option: Any = typer.main.get_command(made).params[0]
    option.expose_value = False
    return option


def _leaves(command: Any) -> Iterator[Any]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield command
    for one in (inner or {}).values():
        yield from _leaves(one)


def wants_json_lines(arguments: Sequence[str]) -> bool:
    """Whether these words ask for JSON: what is wrong with them must be told so, too."""
    pairs = zip(arguments, arguments[1:], strict=False)
    return (_FLAG, LogFormat.JSON.value) in pairs or f"{_FLAG}={LogFormat.JSON.value}" in arguments
