"""What may be configured: frozen settings, one file per pipeline, and one parser that refuses what
it does not know.
"""
