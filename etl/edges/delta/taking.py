"""As what a writer takes the rows of a plan: whoever reads them has to know before."""

from __future__ import annotations

from enum import Enum


class Takes(str, Enum):
    """As what a writer takes rows."""

    NOTHING = "nothing"
    """It commits plans without ranges."""
    DATA_FRAME = "data frame"
    """A DataFrame of Spark, and behind it whatever `formats` and a transform make of it."""
    FILES = "files"
    """Data files that the tasks write themselves."""
