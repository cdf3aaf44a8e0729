"""Records as Python objects, one by one, for small programs and interactive use.

The classes are imported from `etl`: `from etl import Consumer`. Rows of tables do not pass here.
"""
