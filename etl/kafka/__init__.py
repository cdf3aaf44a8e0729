"""Requests and responses of each broker type, encoded and decoded. No sockets.

`broker_types` chooses the broker type; `kafka_requests` (Kafka 0.8 to 4.x) and `jafka_requests` (Jafka,
Kafka 0.7) do not import each other.
"""
