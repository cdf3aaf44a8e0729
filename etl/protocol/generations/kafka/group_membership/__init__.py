"""Membership of Kafka's own groups as bytes: the classic protocol of 0.9 to 4.x, and the consumer
protocol (KIP-848). No sockets.
"""
