"""Paths and documents in ZooKeeper and in Delta commit metadata: rendered and parsed. No client."""
