"""Kafka 0.8 to 4.x: requests and answers, bytes to values and back, no sockets."""
