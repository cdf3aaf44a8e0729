"""Everything that can hang: brokers, ZooKeeper, Delta, Spark, and the files of reports. Nothing below this floor has a socket.

Everything that can hang: brokers, ZooKeeper, Delta, Spark, and the files of reports. Nothing
below this floor has a socket.
"""
