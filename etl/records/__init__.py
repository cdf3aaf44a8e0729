"""Record batches and message sets to Arrow columns, without a Python object per record."""
