import io.jafka.api.FetchRequest;
import io.jafka.consumer.Consumer;
import io.jafka.consumer.ConsumerConfig;
import io.jafka.consumer.ConsumerConnector;
import io.jafka.consumer.MessageStream;
import io.jafka.consumer.SimpleConsumer;
import io.jafka.message.ByteBufferMessageSet;
import io.jafka.message.CompressionCodec;
import io.jafka.message.Message;
import io.jafka.message.MessageAndOffset;
import io.jafka.producer.Producer;
import io.jafka.producer.ProducerConfig;
import io.jafka.producer.ProducerData;
import io.jafka.producer.SyncProducer;
import io.jafka.producer.SyncProducerConfig;
import io.jafka.producer.serializer.DefaultEncoders;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/** Jafka's own producer and consumers. Argument: its ZooKeeper. */
public class Jafka extends Lines {
    static String zookeeper;

    public static void main(String[] arguments) throws Exception {
        zookeeper = arguments[0];
        serve(Map.of("send", Jafka::send, "scatter", Jafka::scatter, "read", Jafka::read, "end", Jafka::end, "join", Jafka::join,
            "open", Jafka::open, "count", Jafka::count, "close", Jafka::close));
    }

    /** send HOST PORT TOPIC PARTITION CODEC [VALUE]...: one request of the low producer, so with a codec one compressed entry. */
    static void send(String[] words, PrintStream out) throws Exception {
        SyncProducer producer = new SyncProducer(new SyncProducerConfig(properties("host", words[1], "port", words[2])));
        Message[] messages = new Message[words.length - 6];
        for (int i = 0; i < messages.length; i++) messages[i] = new Message(bytes(words[i + 6]));
        CompressionCodec codec = CompressionCodec.valueOf(Integer.parseInt(words[5]));
        producer.send(words[3], Integer.parseInt(words[4]), new ByteBufferMessageSet(codec, messages));
        producer.close();
    }

    /** scatter TOPIC CODEC [VALUE]...: the producer that finds brokers in ZooKeeper, which chooses a partition for each message. */
    static void scatter(String[] words, PrintStream out) throws Exception {
        Producer<String, byte[]> producer = new Producer<String, byte[]>(new ProducerConfig(properties(
            "zk.connect", zookeeper, "serializer.class", DefaultEncoders.class.getName(), "compression.codec", words[2])));
        for (int i = 3; i < words.length; i++) producer.send(new ProducerData<String, byte[]>(words[1], bytes(words[i])));
        producer.close();
    }

    /** read HOST PORT TOPIC PARTITION FROM FETCH-SIZE: lines "OFFSET-AS-JAFKA-TELLS-IT - VALUE", to the end. */
    static void read(String[] words, PrintStream out) throws Exception {
        SimpleConsumer consumer = new SimpleConsumer(words[1], Integer.parseInt(words[2]), 10000, 65536);
        int partition = Integer.parseInt(words[4]);
        long position = Long.parseLong(words[5]);
        while (true) {
            ByteBufferMessageSet set = consumer.fetch(new FetchRequest(words[3], partition, position, Integer.parseInt(words[6])));
            if (set.getErrorCode().code != 0) throw new IllegalStateException("error code " + set.getErrorCode());
            if (set.getValidBytes() == 0) break;
            for (MessageAndOffset one : set) {
                out.println(one.offset + " - " + word(one.message.payload()));
            }
            position += set.getValidBytes();
        }
        consumer.close();
    }

    /** end HOST PORT TOPIC PARTITION: the flushed end. */
    static void end(String[] words, PrintStream out) throws Exception {
        SimpleConsumer consumer = new SimpleConsumer(words[1], Integer.parseInt(words[2]), 10000, 65536);
        out.println(consumer.getLatestOffset(words[3], Integer.parseInt(words[4])));
        consumer.close();
    }

    /** join GROUP TOPIC COUNT: a member of a group reads COUNT messages, then it commits and goes. It fails when none comes for a minute. */
    static void join(String[] words, PrintStream out) throws Exception {
        ConsumerConnector connector = Consumer.create(new ConsumerConfig(properties(
            "zk.connect", zookeeper, "groupid", words[1], "autooffset.reset", "smallest", "consumer.timeout.ms", "60000",
            "autocommit.enable", "false", "fetcher.backoff.ms", "100", "rebalance.backoff.ms", "1000")));
        try {
            MessageStream<byte[]> stream = connector.createMessageStreams(Map.of(words[2], 1), new DefaultEncoders()).get(words[2]).get(0);
            java.util.Iterator<byte[]> messages = stream.iterator();
            for (int left = Integer.parseInt(words[3]); left > 0; left--) out.println("- " + word(messages.next()));
            connector.commitOffsets();
        } finally {
            connector.close();
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

        void begin(Iterator<byte[]> messages) {
            Thread reader = new Thread(() -> { while (messages.hasNext() && taken(messages)); });
            reader.setDaemon(true);
            reader.start();
            readers.add(reader);
        }

        synchronized boolean taken(Iterator<byte[]> messages) {
            if (closing) return false;
            read.add(word(messages.next()));
            return true;
        }

        synchronized void stop() {
            closing = true;
        }
    }

    /** open NAME GROUP TOPIC THREADS [KEY VALUE]...: a member that reads until it is closed. It fails when it does not get its share. */
    static void open(String[] words, PrintStream out) throws Exception {
        java.util.Properties properties = properties(
            "zk.connect", zookeeper, "groupid", words[2], "consumerid", words[1], "autooffset.reset", "smallest",
            "autocommit.interval.ms", "200", "fetcher.backoff.ms", "100");
        for (int i = 5; i < words.length; i += 2) properties.setProperty(words[i], words[i + 1]);
        Member member = new Member(Consumer.create(new ConsumerConfig(properties)));
        members.put(words[1], member);
        Map<String, Integer> streams = Map.of(words[3], Integer.valueOf(words[4]));
        for (MessageStream<byte[]> stream : member.connector.createMessageStreams(streams, new DefaultEncoders()).get(words[3])) {
            member.begin(stream.iterator());
        }
    }

    /** count NAME: how many messages it read. */
    static void count(String[] words, PrintStream out) throws Exception {
        out.println(members.get(words[1]).read.size());
    }

    /** close NAME: what it read. */
    static void close(String[] words, PrintStream out) throws Exception {
        Member member = members.remove(words[1]);
        member.stop();
        member.connector.close();
        for (Thread reader : member.readers) reader.join(10_000);
        for (String message : member.read) out.println(message);
    }
}
