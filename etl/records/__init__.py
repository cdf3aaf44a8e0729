"""What the records field of an answer holds: batches and message sets to Arrow columns, with no Python object for each record.

What the records field of an answer holds: record batches and message sets to Arrow columns, with
no Python object per record.
"""
