"""Reads exact offset ranges into a Spark DataFrame or into data files."""
