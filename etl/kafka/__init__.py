"""Requests and responses of each broker type, encoded and decoded. No sockets.

`families` chooses the broker type; `kafka_family` (Kafka 0.8 to 4.x) and `jafka_family` (Jafka,
Kafka 0.7) do not import each other.
"""
