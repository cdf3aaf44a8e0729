"""What is decided, and from which values: pure functions. No clock, no I/O.

What is decided, and from which values: pure functions. Nothing here asks anybody anything, or
knows the time.

What backfills claim beside the live pipeline, and their plans.

Logs whose offsets are byte positions: which of them are where a message begins.

Whether a log is still the one that was read: cut, made again, of another cluster; and what an
operator decides of it.

Groups that divide partitions among their members: who gets which, and when a member lets go.
Pure functions of values.

Intervals of time: which one a run is for, whether the logs are complete up to it, and whether
the table has it whole.
"""
