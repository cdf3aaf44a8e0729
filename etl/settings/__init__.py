"""What may be configured: frozen settings, one conf file for each pipeline, one parser that rejects what it does not know.

What may be configured: frozen settings, one file per pipeline, and one parser that refuses what
it does not know.
"""
