"""What is decided, and from which values: pure functions. Nothing here asks anybody anything, or
knows the time.
"""
