"""The Delta table: its log, appends and what became of them, and the rows that lie there.

The Delta table: its path, its log, appends and what became of them, and the rows that lie there.
"""
