"""The crash matrix: `python -m tests.chaos` plays it; `make test` plays its short form."""
