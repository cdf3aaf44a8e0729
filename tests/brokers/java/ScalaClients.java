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
            "open", ScalaClients::open, "count", ScalaClients::count, "close", ScalaClients::close));
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

    static final Map<String, Member> members = new java.util.concurrent.ConcurrentHashMap<String, Member>();

    /** A consumer that reads on and on. It takes one message at a time, so that it goes behind a message, and never within one. */
    static class Member {
        final ConsumerConnector connector;
        final List<String> read = Collections.synchronizedList(new ArrayList<String>());
        final List<Thread> readers = new ArrayList<Thread>();
        boolean closing;

        Member(ConsumerConnector connector) {
            this.connector = connector;
        }

        void begin(ConsumerIterator<byte[], byte[]> messages) {
            Thread reader = new Thread(() -> { while (messages.hasNext() && taken(messages)); });
            reader.setDaemon(true);
            reader.start();
            readers.add(reader);
        }

        synchronized boolean taken(ConsumerIterator<byte[], byte[]> messages) {
            if (closing) return false;
            MessageAndMetadata<byte[], byte[]> one = messages.next();
            read.add(one.partition() + " " + one.offset() + " " + word(one.key()) + " " + word(one.message()));
            return true;
        }

        synchronized void stop() {
            closing = true;
        }
    }

    /** open NAME GROUP TOPIC THREADS [KEY VALUE]...: a member that reads until it is closed. It fails when it does not get its share. */
    static void open(String[] words, PrintStream out) throws Exception {
        java.util.Properties properties = properties(
            "zookeeper.connect", zookeeper, "group.id", words[2], "consumer.id", words[1], "auto.offset.reset", "smallest",
            "auto.commit.interval.ms", "200");
        for (int i = 5; i < words.length; i += 2) properties.setProperty(words[i], words[i + 1]);
        Member member = new Member(Consumer.createJavaConsumerConnector(new ConsumerConfig(properties)));
        members.put(words[1], member);
        Map<String, Integer> streams = new HashMap<String, Integer>();
        streams.put(words[3], Integer.valueOf(words[4]));
        member.connector.createMessageStreams(streams).get(words[3]).forEach(stream -> member.begin(stream.iterator()));
    }

    /** count NAME: how many messages it read. */
    static void count(String[] words, PrintStream out) throws Exception {
        out.println(members.get(words[1]).read.size());
    }

    /** close NAME: lines "PARTITION OFFSET KEY VALUE" of what it read. */
    static void close(String[] words, PrintStream out) throws Exception {
        Member member = members.remove(words[1]);
        member.stop();
        member.connector.shutdown();
        for (Thread reader : member.readers) reader.join(10_000);
        for (String message : member.read) out.println(message);
    }

    public static class Chosen implements kafka.producer.Partitioner {
        public Chosen(kafka.utils.VerifiableProperties properties) {
        }

        public int partition(Object key, int partitions) {
            return (Integer) key;
        }
    }
}
