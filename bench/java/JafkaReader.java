import io.jafka.consumer.Consumer;
import io.jafka.consumer.ConsumerConfig;
import io.jafka.consumer.ConsumerConnector;
import io.jafka.consumer.MessageStream;
import io.jafka.producer.serializer.DefaultEncoders;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/**
 * Jafka's own consumer, as its users have it, reading into nothing: all settings but four are its own.
 *
 * Arguments: ZooKeeper, topic, streams, messages. For each line on standard input one round, of a group of its own. Printed of each: the
 * seconds from the first message to the last, the seconds from the start of the connector to the last message, and the bytes of all payloads.
 */
public class JafkaReader {
    public static void main(String[] words) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        while (asked.readLine() != null) {
            System.out.println(round(words[0], words[1], "reader-" + System.nanoTime(), Integer.parseInt(words[2]), Long.parseLong(words[3])));
        }
        System.exit(0);
    }

    static String round(String zookeeper, String topic, String group, int streams, long messages) throws Exception {
        Properties settings = new Properties();
        settings.setProperty("zk.connect", zookeeper);
        settings.setProperty("groupid", group);
        settings.setProperty("autooffset.reset", "smallest");
        settings.setProperty("autocommit.enable", "false");
        long started = System.nanoTime();
        ConsumerConnector connector = Consumer.create(new ConsumerConfig(settings));
        List<MessageStream<byte[]>> all = connector.createMessageStreams(Map.of(topic, streams), new DefaultEncoders()).get(topic);
        long[] first = new long[streams], last = new long[streams], bytes = new long[streams];
        Thread[] readers = new Thread[streams];
        for (int i = 0; i < streams; i++) {
            int number = i;
            readers[i] = new Thread(() -> {
                Iterator<byte[]> stream = all.get(number).iterator();
                long size = 0;
                for (long count = 0; count < messages / streams; count++) {
                    size += stream.next().length;
                    if (count == 0) first[number] = System.nanoTime();
                }
                last[number] = System.nanoTime();
                bytes[number] = size;
            });
            readers[i].start();
        }
        for (Thread reader : readers) reader.join();
        connector.close();
        long began = Long.MAX_VALUE, ended = 0, size = 0;
        for (int i = 0; i < streams; i++) {
            began = Math.min(began, first[i]);
            ended = Math.max(ended, last[i]);
            size += bytes[i];
        }
        return (ended - began) / 1e9 + " " + (ended - started) / 1e9 + " " + size;
    }
}
