"""Brokers: one connection, one client of one broker, and questions to a whole cluster."""
