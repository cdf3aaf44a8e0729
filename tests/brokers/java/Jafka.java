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
import java.util.List;
import java.util.Map;

/** Jafka's own producer and consumers. Argument: its ZooKeeper. */
public class Jafka extends Lines {
    static String zookeeper;

    public static void main(String[] arguments) throws Exception {
        zookeeper = arguments[0];
        serve(Map.of("send", Jafka::send, "scatter", Jafka::scatter, "read", Jafka::read, "end", Jafka::end, "join", Jafka::join,
            "open", Jafka::open, "close", Jafka::close));
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

    static final Map<String, ConsumerConnector> members = new java.util.concurrent.ConcurrentHashMap<String, ConsumerConnector>();
    static final Map<String, List<String>> reads = new java.util.concurrent.ConcurrentHashMap<String, List<String>>();
    static final Map<String, Thread> readers = new java.util.concurrent.ConcurrentHashMap<String, Thread>();

    /** open NAME GROUP TOPIC BACKOFF-MS TRIES: a member that reads on and on with one thread, until it is closed. It fails when it does not get its share. */
    static void open(String[] words, PrintStream out) throws Exception {
        ConsumerConnector connector = Consumer.create(new ConsumerConfig(properties(
            "zk.connect", zookeeper, "groupid", words[2], "consumerid", words[1], "autooffset.reset", "smallest",
            "autocommit.interval.ms", "200", "fetcher.backoff.ms", "100", "rebalance.backoff.ms", words[4], "rebalance.retries.max", words[5])));
        members.put(words[1], connector);
        MessageStream<byte[]> stream = connector.createMessageStreams(Map.of(words[3], 1), new DefaultEncoders()).get(words[3]).get(0);
        List<String> read = Collections.synchronizedList(new ArrayList<String>());
        Thread reading = new Thread(() -> { for (byte[] message : stream) read.add(word(message)); });
        reading.setDaemon(true);
        reading.start();
        reads.put(words[1], read);
        readers.put(words[1], reading);
    }

    /** close NAME: what it read. */
    static void close(String[] words, PrintStream out) throws Exception {
        members.remove(words[1]).close();
        Thread reading = readers.remove(words[1]);
        if (reading == null) return; // it never got its share
        reading.join(10_000);
        for (String message : reads.remove(words[1])) out.println(message);
    }
}
