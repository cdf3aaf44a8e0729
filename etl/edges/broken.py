"""That a connection broke: for whoever may make it anew."""

from __future__ import annotations

from etl.errors import EtlError


class ConnectionBroken(ConnectionError):
    """The other side hung up.

    `answered`: a byte of the response had come, so asking again is not the same question. `check`:
    what the request makes of it. `each_time`: what it is where it happens on the next connection,
    too.
    """

    def __init__(
        self, why: str, *, answered: bool, check: str = "", each_time: EtlError | None = None
    ) -> None:
        super().__init__(why)
        self.answered, self.check, self.each_time = answered, check, each_time
