"""One run: its story (`ingest`), the services that it uses, and the rows that it reads."""
