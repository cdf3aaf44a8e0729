"""Does a table hold what the ledger says? Pure functions of values.

Whether a table holds what the ledger says it holds, and why an offset has no row. Pure functions
of values.
"""
