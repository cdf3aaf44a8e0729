"""One run: its story (`ingest`), the services that it works on, the transform of its rows.

One run: its story (`ingest`), the world that it works on, and the transform of its rows.
"""
