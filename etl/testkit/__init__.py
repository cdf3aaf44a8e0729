"""Real ZooKeeper, Kafka, Jafka and Spark on this machine, for the demo and for tests.

    from etl import EmbeddedCluster

    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("clicks", partitions=8)
        run_my_test(cluster.zookeeper_connect, cluster.bootstrap)

Servers listen on 127.0.0.1 only, write a log that errors name, and end with the process that
started them. A run uses only Java and the jars of this folder.
"""
