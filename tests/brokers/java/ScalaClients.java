import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import kafka.api.FetchRequestBuilder;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.javaapi.FetchResponse;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.javaapi.consumer.SimpleConsumer;
import kafka.javaapi.producer.Producer;
import kafka.message.MessageAndMetadata;
import kafka.message.MessageAndOffset;
import kafka.producer.KeyedMessage;
import kafka.producer.ProducerConfig;

/** The clients that Kafka had in Scala, 0.8 to 1.1. Arguments: a broker and the ZooKeeper. */
public class ScalaClients extends Lines {
    static String broker;
    static String zookeeper;

    public static void main(String[] arguments) throws Exception {
        broker = arguments[0];
        zookeeper = arguments[1];
        serve(Map.of("send", ScalaClients::send, "read", ScalaClients::read, "join", ScalaClients::join,
            "open", ScalaClients::open, "close", ScalaClients::close));
    }

    /** send TOPIC PARTITION CODEC [KEY VALUE]...: one request, so with a codec one wrapper. */
    static void send(String[] words, PrintStream out) throws Exception {
        Producer<byte[], byte[]> producer = new Producer<byte[], byte[]>(new ProducerConfig(properties(
            "metadata.broker.list", broker, "request.required.acks", "-1", "compression.codec", words[3],
            "partitioner.class", Chosen.class.getName(), "message.send.max.retries", "0")));
        List<KeyedMessage<byte[], byte[]>> messages = new ArrayList<KeyedMessage<byte[], byte[]>>();
        for (int i = 4; i < words.length; i += 2) {
            messages.add(new KeyedMessage<byte[], byte[]>(words[1], bytes(words[i]), Integer.valueOf(words[2]), bytes(words[i + 1])));
        }
        producer.send(messages);
        producer.close();
    }

    /** read HOST PORT TOPIC PARTITION FROM FETCH-SIZE: lines "OFFSET KEY VALUE", to the end. */
    static void read(String[] words, PrintStream out) throws Exception {
        SimpleConsumer consumer = new SimpleConsumer(words[1], Integer.parseInt(words[2]), 10000, 65536, "tests");
        int partition = Integer.parseInt(words[4]);
        long position = Long.parseLong(words[5]);
        while (true) {
            FetchResponse answer = consumer.fetch(new FetchRequestBuilder().clientId("tests")
                .addFetch(words[3], partition, position, Integer.parseInt(words[6])).build());
            if (answer.hasError()) throw new IllegalStateException("error code " + answer.errorCode(words[3], partition));
            long before = position;
            for (MessageAndOffset one : answer.messageSet(words[3], partition)) {
                if (one.offset() < position) continue; // a wrapper comes whole
                out.println(one.offset() + " " + word(one.message().key()) + " " + word(one.message().payload()));
                position = one.nextOffset();
            }
            if (position == before) break;
        }
        consumer.close();
    }

    /** join GROUP TOPIC COUNT: a member of a group reads COUNT messages, then it commits and goes. It fails when none comes for a minute. */
    static void join(String[] words, PrintStream out) throws Exception {
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties(
            "zookeeper.connect", zookeeper, "group.id", words[1], "auto.offset.reset", "smallest", "consumer.timeout.ms", "60000",
            "auto.commit.enable", "false")));
        Map<String, Integer> streams = new HashMap<String, Integer>();
        streams.put(words[2], 1);
        try {
            ConsumerIterator<byte[], byte[]> messages = connector.createMessageStreams(streams).get(words[2]).get(0).iterator();
            for (int left = Integer.parseInt(words[3]); left > 0; left--) {
                MessageAndMetadata<byte[], byte[]> one = messages.next();
                out.println(one.partition() + " " + one.offset() + " " + word(one.key()) + " " + word(one.message()));
            }
            connector.commitOffsets();
        } finally {
            connector.shutdown();
        }
    }

    static final Map<String, ConsumerConnector> members = new java.util.concurrent.ConcurrentHashMap<String, ConsumerConnector>();
    static final Map<String, List<String>> reads = new java.util.concurrent.ConcurrentHashMap<String, List<String>>();
    static final Map<String, Thread> readers = new java.util.concurrent.ConcurrentHashMap<String, Thread>();

    /** open NAME GROUP TOPIC BACKOFF-MS TRIES: a member that reads on and on with one thread, until it is closed. It fails when it does not get its share. */
    static void open(String[] words, PrintStream out) throws Exception {
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties(
            "zookeeper.connect", zookeeper, "group.id", words[2], "consumer.id", words[1], "auto.offset.reset", "smallest",
            "auto.commit.interval.ms", "200", "rebalance.backoff.ms", words[4], "rebalance.max.retries", words[5])));
        members.put(words[1], connector);
        Map<String, Integer> streams = new HashMap<String, Integer>();
        streams.put(words[3], 1);
        ConsumerIterator<byte[], byte[]> messages = connector.createMessageStreams(streams).get(words[3]).get(0).iterator();
        List<String> read = Collections.synchronizedList(new ArrayList<String>());
        Thread reading = new Thread(() -> { while (messages.hasNext()) read.add(word(messages.next().message())); });
        reading.setDaemon(true);
        reading.start();
        reads.put(words[1], read);
        readers.put(words[1], reading);
    }

    /** close NAME: what it read. */
    static void close(String[] words, PrintStream out) throws Exception {
        members.remove(words[1]).shutdown();
        Thread reading = readers.remove(words[1]);
        if (reading == null) return; // it never got its share
        reading.join(10_000);
        for (String message : reads.remove(words[1])) out.println(message);
    }

    public static class Chosen implements kafka.producer.Partitioner {
        public Chosen(kafka.utils.VerifiableProperties properties) {
        }

        public int partition(Object key, int partitions) {
            return (Integer) key;
        }
    }
}
