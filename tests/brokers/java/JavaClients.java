import java.io.PrintStream;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The clients that Kafka has in Java, 0.9 on. What came later is called by reflection. Argument: a broker. */
public class JavaClients extends JavaProducer {
    public static void main(String[] arguments) throws Exception {
        broker = arguments[0];
        serve(Map.of("send", JavaProducer::send, "read", JavaClients::read));
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
            for (ConsumerRecord<byte[], byte[]> one : polled(consumer)) {
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
    static ConsumerRecords<byte[], byte[]> polled(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        try {
            Method poll = KafkaConsumer.class.getMethod("poll", Duration.class);
            return (ConsumerRecords<byte[], byte[]>) poll.invoke(consumer, Duration.ofSeconds(1));
        } catch (NoSuchMethodException beforeTwo) {
            return (ConsumerRecords<byte[], byte[]>) KafkaConsumer.class.getMethod("poll", long.class).invoke(consumer, 1000L);
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
