"""Brokers of each release, with producers and consumers of other projects. It is a package so that
they end after the last of its tests.
"""
