import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import kafka.common.TopicAndPartition;
import kafka.consumer.AssignmentContext;
import kafka.consumer.Blacklist;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.PartitionAssignor$;
import kafka.consumer.TopicFilter;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import org.I0Itec.zkclient.InMemoryConnection;
import org.I0Itec.zkclient.ZkClient;
import org.I0Itec.zkclient.ZkConnection;
import org.apache.zookeeper.CreateMode;

/** What Kafka's consumers in Scala, 0.8.2 to 1.1, divide a group into: their own classes, on a ZooKeeper that is a map. */
public class ScalaAssignors extends Lines {
    static final InMemoryConnection znodes = new InMemoryConnection();
    static final List<String> made = new ArrayList<String>();
    static ZkClient client;

    public static void main(String[] arguments) throws Exception {
        client = new ZkClient(znodes, 5000, new Text()); // one for all: to close one takes seconds
        serve(Map.of("assign", ScalaAssignors::assign, "register", ScalaAssignors::register, "clean", ScalaAssignors::clean));
    }

    /**
     * assign STRATEGIES GROUP CONSUMERS PATH DATA [PATH DATA]...: for each strategy (with commas between) a line "strategy S", then for each
     * of the consumers (likewise) "consumer C" and what it computes, "THREAD TOPIC PARTITION", of itself alone in 0.8, of all in later
     * releases; or "refused" and why. What a consumer reads of the group takes longest, so it reads it once for all strategies.
     */
    static void assign(String[] words, PrintStream out) throws Exception {
        while (!made.isEmpty()) znodes.delete(made.remove(made.size() - 1));
        for (int i = 4; i < words.length; i += 2) make(words[i], bytes(words[i + 1]));
        String[] consumers = words[3].split(",");
        AssignmentContext[] contexts = new AssignmentContext[consumers.length];
        for (int i = 0; i < consumers.length; i++) contexts[i] = (AssignmentContext) context(words[2], consumers[i]);
        for (String strategy : words[1].split(",")) {
            out.println("strategy " + strategy);
            for (int i = 0; i < consumers.length; i++) {
                out.println("consumer " + consumers[i]);
                try {
                    tell(PartitionAssignor$.MODULE$.createInstance(strategy).assign(contexts[i]), out);
                } catch (Exception refused) {
                    out.println("refused " + String.valueOf(refused).replace('\n', ' '));
                }
            }
        }
    }

    static void make(String path, byte[] data) throws Exception {
        for (int at = path.indexOf('/', 1); at > 0; at = path.indexOf('/', at + 1)) {
            if (!znodes.exists(path.substring(0, at), false)) create(path.substring(0, at), null);
        }
        create(path, data);
    }

    static void create(String path, byte[] data) throws Exception {
        znodes.create(path, data, CreateMode.PERSISTENT);
        made.add(path);
    }

    static Object context(String group, String consumer) throws Exception {
        Constructor<?> constructor = AssignmentContext.class.getConstructors()[0];
        Class<?> last = constructor.getParameterTypes()[3];
        if (last == ZkClient.class) return constructor.newInstance(group, consumer, true, client);
        Object utils = last.getConstructors()[0].newInstance(client, new ZkConnection("unused:1"), false);
        return constructor.newInstance(group, consumer, true, utils);
    }

    static void tell(Object found, PrintStream out) {
        if (found instanceof kafka.utils.Pool) {
            scala.collection.Iterator<?> each = ((kafka.utils.Pool<?, ?>) found).values().iterator();
            while (each.hasNext()) tell(each.next(), out);
            return;
        }
        scala.collection.Iterator<?> each = ((scala.collection.Map<?, ?>) found).iterator();
        while (each.hasNext()) {
            scala.Tuple2<?, ?> one = (scala.Tuple2<?, ?>) each.next();
            TopicAndPartition log = (TopicAndPartition) one._1();
            out.println(one._2() + " " + log.topic() + " " + log.partition());
        }
    }

    /** register ZOOKEEPER GROUP KIND TEXT THREADS: a real consumer; what it wrote of itself, and to what its filter was cleaned. */
    static void register(String[] words, PrintStream out) throws Exception {
        String text = new String(bytes(words[4]), "UTF-8");
        Integer threads = Integer.valueOf(words[5]);
        ConsumerConnector consumer = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties(
            "zookeeper.connect", words[1], "group.id", words[2], "consumer.id", "one", "auto.commit.enable", "false")));
        TopicFilter filter = words[3].equals("white_list") ? new Whitelist(text) : new Blacklist(text);
        if (words[3].equals("static")) consumer.createMessageStreams(Map.of(text, threads));
        else consumer.createMessageStreamsByFilter(filter, threads.intValue());
        ZkClient reader = new ZkClient(words[1], 6000, 6000, new Text());
        String payload = reader.readData("/consumers/" + words[2] + "/ids/" + words[2] + "_one");
        out.println(word(payload.getBytes("UTF-8")) + " " + word(filter.regex().getBytes("UTF-8")));
        reader.close();
        consumer.shutdown();
    }

    /** clean TEXT...: for each what a filter makes of it, or "refused". */
    static void clean(String[] words, PrintStream out) throws Exception {
        for (int i = 1; i < words.length; i++) {
            try {
                out.println(word(new Whitelist(new String(bytes(words[i]), "UTF-8")).regex().getBytes("UTF-8")));
            } catch (RuntimeException refused) {
                out.println("refused");
            }
        }
    }

    static class Text implements org.I0Itec.zkclient.serialize.ZkSerializer {
        public byte[] serialize(Object data) {
            return ((String) data).getBytes(java.nio.charset.StandardCharsets.UTF_8);
        }

        public Object deserialize(byte[] bytes) {
            return bytes == null ? null : new String(bytes, java.nio.charset.StandardCharsets.UTF_8);
        }
    }
}
