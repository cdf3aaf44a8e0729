"""The Delta table: its log, appends and their results, and its rows."""
