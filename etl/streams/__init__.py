"""Records for a person or a small program, as consumers give them. Rows of tables never come this way.

Records for a person or a small program, as consumers give them. Rows of tables never come this
way.

    from etl.streams import Consumer

Loaded when it is first asked for, like what `etl` itself has.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.streams.conf import Conf, Group, Listener
    from etl.streams.connector import Connector, ConsumerTimeout, MessageStream
    from etl.streams.consumer import Consumer
    from etl.streams.records import Record


__all__ = [
    "Conf",
    "Connector",
    "Consumer",
    "Group",
    "Listener",
    "MessageStream",
    "ConsumerTimeout",
    "Record",
]

_HOMES = {
    "Conf": "etl.streams.conf",
    "Connector": "etl.streams.connector",
    "Consumer": "etl.streams.consumer",
    "Group": "etl.streams.conf",
    "Listener": "etl.streams.conf",
    "MessageStream": "etl.streams.connector",
    "ConsumerTimeout": "etl.streams.connector",
    "Record": "etl.streams.records",
}


def __getattr__(name: str) -> Any:
    """The public name, imported from where it lives (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
