"""Brokers: one connection, one consumer of one broker, and questions that take several."""
