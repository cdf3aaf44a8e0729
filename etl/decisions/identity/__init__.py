"""Whether a log is still the one that was read: cut, made again, of another cluster; and what an
operator decides of it.
"""
