"""What the records field of an answer holds: record batches to Arrow columns, with no Python object per record."""
