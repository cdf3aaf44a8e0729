"""Everything that can hang: brokers, ZooKeeper, Delta. Each edge has a deadline, and nothing below this floor has a socket."""
