"""Everything that can block: brokers, ZooKeeper, Delta, Spark, report files. Only here are sockets."""
