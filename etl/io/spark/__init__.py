"""Spark: one session, and what its failures mean."""
