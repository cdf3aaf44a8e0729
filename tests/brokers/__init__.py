"""Brokers of each release, with producers and consumers that are not ours. A package: so they end
behind the last of its tests.
"""
