"""What `etl doctor` looks at, a room for each part of the world; `etl.doctor` says in which order.

A check is a function: what is known so far in, lines out. It changes nothing anywhere.
"""
