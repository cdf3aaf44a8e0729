"""Immutable values that every folder uses. No I/O, no policy."""
