"""Requests and responses of each broker type, encoded and decoded. No sockets.

`broker_types` chooses the broker type; `kafka_broker_type` (Kafka 0.8 to 4.x) and
`jafka_broker_type` (Jafka, Kafka 0.7) do not import each other.
"""
