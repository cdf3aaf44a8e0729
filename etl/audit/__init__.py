"""Whether a table holds what the ledger says it holds, and why an offset has no row. Pure functions
of values.
"""
