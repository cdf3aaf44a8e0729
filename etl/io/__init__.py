"""Everything that can block: sockets, ZooKeeper, brokers, Delta, Spark, report files."""
