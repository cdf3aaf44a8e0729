import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The producer that Kafka has in Java, 0.8.2 on. What came later is called by reflection. Argument: a broker. */
public class JavaProducer extends Lines {
    static String broker;

    public static void main(String[] arguments) throws Exception {
        broker = arguments[0];
        serve(Map.of("send", JavaProducer::send));
    }

    /** send TOPIC PARTITION CODEC ENDING [KEY VALUE]...: one batch. ENDING is "plain", or "commit" or "abort" of a transaction. */
    static void send(String[] words, PrintStream out) throws Exception {
        Properties properties = properties(
            "bootstrap.servers", broker, "acks", "all", "retries", "3", "compression.type", words[3], "linger.ms", "50",
            "batch.size", "10000000", "max.request.size", "10000000", "buffer.memory", "100000000");
        boolean plain = words[4].equals("plain");
        if (!plain) properties.setProperty("transactional.id", "tests-" + words[1]);
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<byte[], byte[]>(properties, new ByteArraySerializer(), new ByteArraySerializer());
        if (!plain) called(producer, "initTransactions");
        if (!plain) called(producer, "beginTransaction");
        List<Future<?>> sent = new ArrayList<Future<?>>();
        for (int i = 5; i < words.length; i += 2) {
            sent.add(producer.send(new ProducerRecord<byte[], byte[]>(words[1], Integer.valueOf(words[2]), bytes(words[i]), bytes(words[i + 1]))));
        }
        for (Future<?> one : sent) one.get();
        if (!plain) called(producer, words[4] + "Transaction");
        producer.close();
    }

    static void called(Object target, String name) throws Exception {
        target.getClass().getMethod(name).invoke(target);
    }
}
