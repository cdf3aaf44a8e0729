"""Brokers: one connection, one client of one broker, and questions that take several.

Brokers: one connection, one consumer of one broker, and questions that take several.
"""
