"""Real ZooKeeper, Kafka, Jafka and Spark on this machine as context managers, for the demo and for tests.

Real ZooKeeper, Kafka, Jafka and Spark on this machine as context managers: for the demo, the
tests and users' own tests.

    from etl import Cluster

    with Cluster(brokers=1) as cluster:
        cluster.create_topic("clicks", partitions=8)
        run_my_test(cluster.zookeeper_connect, cluster.bootstrap)

Servers listen on 127.0.0.1 only, log to a file that errors name, and do not outlive the process
that started them. `java` finds Java, `jars` fetches once, `server` owns a process; `zookeeper`,
`kafka`, `spark` say what to start, `releases` which brokers there are, `administration` how each is
found ready; `cluster` puts them together. Of all this a run takes only Java and the jars.
"""
