"""Logs whose offsets are byte positions: which of them are where a message begins."""
