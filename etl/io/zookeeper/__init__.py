"""ZooKeeper: one session, and what is read and written there."""
