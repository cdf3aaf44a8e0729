"""ZooKeeper: one session, and what is kept there: the registry, the group, the ledger, owners, the
driver's lock.
"""
