"""Jafka, and Kafka 0.7 from which it comes: requests without a number, offsets that are byte
positions.
"""
