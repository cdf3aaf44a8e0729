"""Brokers of each release; a package, so that their servers end after the last of its tests."""
