"""`python -m tests.model [--large]`: look at every interleaving, and print how many states there
are.
"""

from __future__ import annotations

import sys

from tests.model.exactly_once import LARGE, Left, explore

states, broken = explore(LARGE if "--large" in sys.argv else Left())
print(f"{states:,} states, " + (f"BROKEN: {broken}" if broken else "every law holds"))
sys.exit(bool(broken))
