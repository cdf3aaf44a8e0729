"""Groups that divide partitions among their members: who gets which, and when a member lets go.
Pure functions of values.
"""
