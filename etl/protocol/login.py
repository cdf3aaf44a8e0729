"""A login (SASL) in words of no generation: what brokers are told and answer before they take any
other request. No I/O.

What the tokens are belongs to the mechanism, of which nobody here knows anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from etl.errors import Refusal
    from etl.protocol.generations.dialect import Request


@dataclass(frozen=True, slots=True)
class MechanismAnswer:
    """Whether a login by the mechanism that was named may begin."""

    is_taken: bool
    offered: tuple[str, ...] = ()
    """What the listener has instead."""
    wants_none: bool = False
    """Nobody logs in on this listener."""


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """What comes of a token."""

    token: bytes = b""
    refusal: Refusal | None = None
    """Why the login came to nothing; None: it goes on, or is done."""
    is_wrong: bool = False
    """Whether the refusal is of who we say we are; any other one says nothing of that."""
    said: str = ""
    """The broker's own words of a refusal, which may quote what it was sent; empty: it has none."""
    lifetime_s: float | None = None
    """How long the login holds (KIP-368); None: without end."""


class LoginDialect(Protocol):
    """How one broker is told."""

    def mechanism(self, name: str) -> Request[MechanismAnswer]:
        """The login is to be by this one."""

    def token(self, token: bytes) -> Request[TokenAnswer]:
        """The mechanism's next bytes."""
