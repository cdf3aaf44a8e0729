"""Records one by one, for a person or a small program, as Kafka's consumers give them.

The classes are imported from `etl`: `from etl import Consumer`. Rows of tables never come this way.
"""
