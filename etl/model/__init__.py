"""The frozen values that every folder speaks of. No I/O, no policy.

The frozen values that every folder speaks of. No I/O, no policy; the words are those of the
glossary (docs/DESIGN.md).
"""
