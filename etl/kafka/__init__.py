"""Bytes to values and back for brokers of each family, without sockets.

Bytes to values and back, without sockets: requests and answers, the records in them, and what
ZooKeeper holds.

The generations of brokers, one folder each: what is asked and answered, to bytes and back.
Generations do not know one another.

Jafka, and Kafka 0.7 from which it comes: requests without a number, offsets that are byte
positions.

Kafka 0.8 to 4.x: requests and answers, bytes to values and back, no sockets.

Membership of Kafka's own groups as bytes: the classic protocol of 0.9 to 4.x, and the consumer
protocol (KIP-848). No sockets.
"""
