"""Where secrets are found. Values that travel to tasks.

No secret is in them, only where one is found (`SecretRef`): whoever uses it looks there, in its own process and each time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of the machine that opens it."""

    path: str
    folder: str | None = None
    """Where a relative path is seen from; None: the folder that the process works in."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where it is looked for: a relative path from `folder`, then by its name where the process works, which is where YARN puts the
        files of `--files`."""
        if self.folder is None or self.path.startswith("/"):
            return (self.path,)
        return f"{self.folder.rstrip('/')}/{self.path}", self.path.rpartition("/")[2]

    def __str__(self) -> str:
        return self.places[0]


@dataclass(frozen=True, slots=True, repr=False)
class SecretRef:
    """Where a secret is found: an environment variable, or a file. It holds none, so it may be shown, stored and sent."""

    kind: str
    """`env` or `file`."""
    name: str
    folder: str | None = None
    """Of a file: see `LocalFile`."""

    @property
    def file(self) -> LocalFile:
        """The file."""
        return LocalFile(self.name, self.folder)

    def __repr__(self) -> str:
        return f"SecretRef({self})"

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.name}}}"


def parse_reference(text: str, folder: str | None = None) -> SecretRef | None:
    """`${env:NAME}` or `${file:/path}`, and nothing else around it; None for any other text."""
    found = _REFERENCE.fullmatch(text.strip())
    return SecretRef(found[1], found[2], folder if found[1] == "file" else None) if found else None
