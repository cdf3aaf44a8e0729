"""One run: its story (`ingest`), the world that it works on, and the transform of its rows."""
