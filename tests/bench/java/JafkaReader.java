import io.jafka.consumer.Consumer;
import io.jafka.consumer.ConsumerConfig;
import io.jafka.consumer.ConsumerConnector;
import io.jafka.consumer.MessageStream;
import io.jafka.producer.serializer.DefaultEncoders;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** Jafka's own consumer, reading into nothing. Arguments: ZooKeeper, topic, streams, messages, rounds. Prints the seconds of each round. */
public class JafkaReader {
    public static void main(String[] words) throws Exception {
        int streams = Integer.parseInt(words[2]);
        long messages = Long.parseLong(words[3]);
        for (int round = 0; round < Integer.parseInt(words[4]); round++) {
            System.out.println(seconds(words[0], words[1], "reader-" + round + "-" + System.nanoTime(), streams, messages));
        }
        System.exit(0);
    }

    /** From the moment that the first message is there, so that neither ZooKeeper nor the rebalance counts, to the last one. */
    static double seconds(String zookeeper, String topic, String group, int streams, long messages) throws Exception {
        Properties settings = new Properties();
        settings.setProperty("zk.connect", zookeeper);
        settings.setProperty("groupid", group);
        settings.setProperty("autooffset.reset", "smallest");
        settings.setProperty("autocommit.enable", "false");
        ConsumerConnector connector = Consumer.create(new ConsumerConfig(settings));
        List<MessageStream<byte[]>> all = connector.createMessageStreams(Map.of(topic, streams), new DefaultEncoders()).get(topic);
        long[] first = new long[streams];
        long[] last = new long[streams];
        Thread[] readers = new Thread[streams];
        for (int i = 0; i < streams; i++) {
            int number = i;
            readers[i] = new Thread(() -> {
                Iterator<byte[]> stream = all.get(number).iterator();
                for (long count = 0; count < messages / streams; count++) {
                    stream.next();
                    if (count == 0) first[number] = System.nanoTime();
                }
                last[number] = System.nanoTime();
            });
            readers[i].start();
        }
        for (Thread reader : readers) reader.join();
        connector.close();
        long began = Long.MAX_VALUE, ended = 0;
        for (int i = 0; i < streams; i++) {
            began = Math.min(began, first[i]);
            ended = Math.max(ended, last[i]);
        }
        return (ended - began) / 1e9;
    }
}
