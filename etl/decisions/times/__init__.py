"""Intervals of time: which one a run is for, whether the logs are complete up to it, and whether
the table has it whole.
"""
