"""The crash matrix: `python -m tests.chaos` plays it and writes docs/CRASHES.md; `make test` plays
its short form.
"""
