import java.io.PrintStream;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Queue;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The clients that Kafka has in Java, 0.9 on. What came later is called by reflection. Argument: a broker. */
public class JavaClients extends JavaProducer {
    public static void main(String[] arguments) throws Exception {
        broker = arguments[0];
        serve(Map.of(
            "send", JavaProducer::send, "read", JavaClients::read,
            "enter", JavaClients::enter, "owns", JavaClients::owns, "changes", JavaClients::changes,
            "count", JavaClients::count, "exit", JavaClients::exit));
    }

    static final Map<String, Member> members = new ConcurrentHashMap<String, Member>();

    /** A consumer that polls and commits what came, in a thread of its own. What it read is what it also committed. */
    static class Member extends Thread implements ConsumerRebalanceListener {
        final KafkaConsumer<byte[], byte[]> consumer;
        final Queue<ConsumerRecord<byte[], byte[]>> read = new ConcurrentLinkedQueue<ConsumerRecord<byte[], byte[]>>();
        final List<ConsumerRecord<byte[], byte[]>> uncommitted = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        final AtomicInteger changes = new AtomicInteger();
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
                    for (ConsumerRecord<byte[], byte[]> one : polled(consumer, 100)) uncommitted.add(one);
                    commit();
                    owned = new TreeSet<TopicPartition>(Comparator.comparing(TopicPartition::toString)) {{ addAll(consumer.assignment()); }};
                }
            } catch (Exception failure) {
                failure.printStackTrace();
                failed = String.valueOf(failure);
            } finally {
                consumer.close();
            }
        }

        /** Where the group is dividing its logs anew nothing is committed, and what stays ours is with the next time. */
        void commit() {
            if (uncommitted.isEmpty()) return;
            try {
                consumer.commitSync();
                read.addAll(uncommitted);
                uncommitted.clear();
            } catch (KafkaException refused) {
                System.err.println("not committed: " + refused);
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> logs) {
            if (!logs.isEmpty()) changes.incrementAndGet();
            commit();
            uncommitted.removeIf(one -> logs.contains(new TopicPartition(one.topic(), one.partition())));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> logs) {
            if (!logs.isEmpty()) changes.incrementAndGet();
        }
    }

    /** enter NAME GROUP TOPIC [KEY VALUE]...: become a member of a group, with these settings. */
    static void enter(String[] words, PrintStream out) throws Exception {
        Properties properties = properties(
            "bootstrap.servers", broker, "group.id", words[2], "enable.auto.commit", "false", "auto.offset.reset", "earliest");
        for (int i = 4; i < words.length; i += 2) properties.setProperty(words[i], words[i + 1]);
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<byte[], byte[]>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        Member member = new Member(consumer);
        consumer.subscribe(Arrays.asList(words[3]), member);
        members.put(words[1], member);
        member.start();
    }

    /** owns NAME: lines "TOPIC PARTITION" of what it has. */
    static void owns(String[] words, PrintStream out) throws Exception {
        Member member = members.get(words[1]);
        if (member.failed != null) throw new IllegalStateException(member.failed);
        for (TopicPartition log : member.owned) out.println(log.topic() + " " + log.partition());
    }

    /** changes NAME: how often it was given logs, or some were taken from it. */
    static void changes(String[] words, PrintStream out) throws Exception {
        out.println(members.get(words[1]).changes.get());
    }

    /** count NAME: how many records it read and committed. */
    static void count(String[] words, PrintStream out) throws Exception {
        out.println(members.get(words[1]).read.size());
    }

    /** exit NAME: leave the group; lines "PARTITION OFFSET KEY VALUE" of what it read and committed. */
    static void exit(String[] words, PrintStream out) throws Exception {
        Member member = members.remove(words[1]);
        member.closing = true;
        member.join();
        if (member.failed != null) throw new IllegalStateException(member.failed);
        for (ConsumerRecord<byte[], byte[]> one : member.read) {
            out.println(one.partition() + " " + one.offset() + " " + word(one.key()) + " " + word(one.value()));
        }
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
