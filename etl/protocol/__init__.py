"""Bytes to values and back, without sockets: requests and answers, the records in them, and what
ZooKeeper holds.
"""
