"""ZooKeeper: one session, and what is kept there: registry, group, ledger, owners, the driver's lock.

ZooKeeper: one session, and what is kept there: the registry, the group, the ledger, owners, the
driver's lock.
"""
