"""Which tests stay on one worker of the gate: those of a file; of `tests/brokers`, those on one release, whose servers start once."""

from __future__ import annotations

import re

from etl.embedded.releases import RELEASES

_RELEASE = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, RELEASES))})(?![\w.])")


def unit_of(test: str) -> str:
    """What the test of this id stays together with: a file, or a release of the brokers, which stands among its parameters."""
    file, _, named = test.partition("::")
    release = _RELEASE.search(named.partition("[")[2]) if file.startswith("tests/brokers/") else None
    return f"tests/brokers on {release[1]}" if release else file
