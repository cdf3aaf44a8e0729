import java.io.PrintStream;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The clients that Kafka has in Java, 0.9 on. What came later is called by reflection. Argument: a broker. */
public class JavaClients extends JavaProducer {
    public static void main(String[] arguments) throws Exception {
        broker = arguments[0];
        serve(Map.of(
            "send", JavaProducer::send, "read", JavaClients::read,
            "enter", JavaClients::enter, "owns", JavaClients::owns, "exit", JavaClients::exit));
    }

    static final Map<String, Member> members = new ConcurrentHashMap<String, Member>();

    /** A consumer that polls, and nothing else, in a thread of its own. */
    static class Member extends Thread {
        final KafkaConsumer<byte[], byte[]> consumer;
        volatile Set<TopicPartition> owned = Collections.emptySet();
        volatile String failed;
        volatile boolean closing;

        Member(KafkaConsumer<byte[], byte[]> consumer) {
            this.consumer = consumer;
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                while (!closing) {
                    polled(consumer, 100);
                    owned = new TreeSet<TopicPartition>(Comparator.comparing(TopicPartition::toString)) {{ addAll(consumer.assignment()); }};
                }
            } catch (Exception failure) {
                failure.printStackTrace();
                failed = String.valueOf(failure);
            } finally {
                consumer.close();
            }
        }
    }

    /** enter NAME GROUP TOPIC [KEY VALUE]...: become a member of a group, with these settings. */
    static void enter(String[] words, PrintStream out) throws Exception {
        Properties properties = properties(
            "bootstrap.servers", broker, "group.id", words[2], "enable.auto.commit", "false", "auto.offset.reset", "earliest");
        for (int i = 4; i < words.length; i += 2) properties.setProperty(words[i], words[i + 1]);
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<byte[], byte[]>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(Arrays.asList(words[3]));
        Member member = new Member(consumer);
        members.put(words[1], member);
        member.start();
    }

    /** owns NAME: lines "TOPIC PARTITION" of what it has. */
    static void owns(String[] words, PrintStream out) throws Exception {
        Member member = members.get(words[1]);
        if (member.failed != null) throw new IllegalStateException(member.failed);
        for (TopicPartition log : member.owned) out.println(log.topic() + " " + log.partition());
    }

    /** exit NAME: leave the group. */
    static void exit(String[] words, PrintStream out) throws Exception {
        Member member = members.remove(words[1]);
        member.closing = true;
        member.join();
    }

    /** read TOPIC PARTITION FROM: lines "OFFSET KEY VALUE TIMESTAMP" to the end, as a reader of committed records is given them. */
    static void read(String[] words, PrintStream out) throws Exception {
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<byte[], byte[]>(
            properties("bootstrap.servers", broker, "isolation.level", "read_committed", "enable.auto.commit", "false"),
            new ByteArrayDeserializer(), new ByteArrayDeserializer());
        TopicPartition log = new TopicPartition(words[1], Integer.parseInt(words[2]));
        consumer.assign(Arrays.asList(log));
        soughtEnd(consumer, log);
        long end = consumer.position(log);
        consumer.seek(log, Long.parseLong(words[3]));
        long deadline = System.currentTimeMillis() + 30000;
        while (consumer.position(log) < end) {
            if (System.currentTimeMillis() > deadline) throw new IllegalStateException("not all came");
            for (ConsumerRecord<byte[], byte[]> one : polled(consumer, 1000)) {
                out.println(one.offset() + " " + word(one.key()) + " " + word(one.value()) + " " + timestamp(one));
            }
        }
        consumer.close();
    }

    static void soughtEnd(KafkaConsumer<byte[], byte[]> consumer, TopicPartition log) throws Exception {
        for (Method method : KafkaConsumer.class.getMethods()) {
            if (!method.getName().equals("seekToEnd")) continue;
            method.invoke(consumer, method.isVarArgs() ? (Object) new TopicPartition[] {log} : Arrays.asList(log)); // a list from 0.10 on
        }
    }

    @SuppressWarnings("unchecked")
    static ConsumerRecords<byte[], byte[]> polled(KafkaConsumer<byte[], byte[]> consumer, long ms) throws Exception {
        try {
            Method poll = KafkaConsumer.class.getMethod("poll", Duration.class);
            return (ConsumerRecords<byte[], byte[]>) poll.invoke(consumer, Duration.ofMillis(ms));
        } catch (NoSuchMethodException beforeTwo) {
            return (ConsumerRecords<byte[], byte[]>) KafkaConsumer.class.getMethod("poll", long.class).invoke(consumer, ms);
        }
    }

    static String timestamp(ConsumerRecord<byte[], byte[]> record) throws Exception {
        try {
            return String.valueOf(ConsumerRecord.class.getMethod("timestamp").invoke(record));
        } catch (NoSuchMethodException beforeTimestamps) {
            return "-";
        }
    }
}
