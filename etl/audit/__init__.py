"""Does a table hold what the ledger records, and why has an offset no row? Pure functions."""
