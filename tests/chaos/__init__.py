"""The crash matrix: `python -m tests.chaos` plays it and writes docs/proof/crashes.md; `make test`
plays its short form.
"""
