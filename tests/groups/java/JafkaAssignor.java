import com.github.zkclient.ZkClient;
import com.github.zkclient.exception.ZkNoNodeException;
import io.jafka.consumer.ConsumerConfig;
import io.jafka.consumer.TopicCount;
import io.jafka.consumer.ZookeeperConsumerConnector;
import io.jafka.utils.Pool;
import io.jafka.utils.zookeeper.ZkGroupDirs;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicBoolean;

/** What Jafka's consumer divides a group into: its own rebalance, on a ZooKeeper that is a map, without a broker. */
public class JafkaAssignor extends Lines {
    static sun.misc.Unsafe unsafe;

    public static void main(String[] arguments) throws Exception {
        Field field = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        unsafe = (sun.misc.Unsafe) field.get(null);
        serve(Map.of("assign", JafkaAssignor::assign, "register", JafkaAssignor::register));
    }

    /** A client without a server: it reads what it was given, and remembers the owner nodes that are made. */
    static class Znodes extends ZkClient {
        TreeMap<String, byte[]> data;
        Map<String, String> owners;

        Znodes() {
            super("never called");
        }

        byte[] read(String path) {
            if (path.contains("/offsets/")) return "0".getBytes();
            if (!data.containsKey(path)) throw new ZkNoNodeException();
            return data.get(path);
        }

        @Override public byte[] readData(String path) {
            return read(path);
        }

        @Override public byte[] readData(String path, boolean orNull) {
            return read(path);
        }

        @Override public byte[] readData(String path, org.apache.zookeeper.data.Stat stat) {
            return read(path);
        }

        @Override public boolean exists(String path) {
            return data.containsKey(path);
        }

        @Override public List<String> getChildren(String path) {
            List<String> found = new ArrayList<String>();
            for (String one : data.keySet()) {
                if (one.startsWith(path + "/") && one.indexOf('/', path.length() + 1) < 0) found.add(one.substring(path.length() + 1));
            }
            return found;
        }

        @Override public void createEphemeral(String path, byte[] content) {
            owners.put(path, new String(content));
        }

        @Override public void createEphemeral(String path) {
            throw new IllegalStateException(path);
        }
    }

    /** assign range GROUP CONSUMERS PATH DATA [PATH DATA]...: "strategy range", for each consumer "consumer C", then "THREAD TOPIC KEY". */
    static void assign(String[] words, PrintStream out) throws Exception {
        Znodes znodes = (Znodes) unsafe.allocateInstance(Znodes.class);
        znodes.data = new TreeMap<String, byte[]>();
        for (int i = 4; i < words.length; i += 2) znodes.data.put(words[i], bytes(words[i + 1]));
        out.println("strategy " + words[1]);
        for (String consumer : words[3].split(",")) {
            znodes.owners = new LinkedHashMap<String, String>();
            out.println("consumer " + consumer);
            try {
                rebalance(znodes, words[2], consumer);
                for (Map.Entry<String, String> one : znodes.owners.entrySet()) {
                    String[] parts = one.getKey().split("/");
                    out.println(one.getValue() + " " + parts[4] + " " + parts[5]);
                }
            } catch (java.lang.reflect.InvocationTargetException refused) {
                out.println("refused " + String.valueOf(refused.getCause()).replace('\n', ' '));
            }
        }
    }

    static void rebalance(Znodes znodes, String group, String consumer) throws Exception {
        ZookeeperConsumerConnector connector = (ZookeeperConsumerConnector) unsafe.allocateInstance(ZookeeperConsumerConnector.class);
        set(connector, "logger", org.slf4j.LoggerFactory.getLogger("tests"));
        set(connector, "isShuttingDown", new AtomicBoolean());
        set(connector, "rebalanceLock", new Object());
        set(connector, "zkClient", znodes);
        set(connector, "topicRegistry", new Pool());
        set(connector, "queues", new Pool());
        set(connector, "config", new ConsumerConfig(properties("groupid", group, "zk.connect", "unused:1", "autocommit.enable", "false")));
        Class<?> kind = Class.forName("io.jafka.consumer.ZookeeperConsumerConnector$ZKRebalancerListener");
        Constructor<?> constructor = kind.getDeclaredConstructors()[0];
        constructor.setAccessible(true);
        TopicCount ours = TopicCount.parse(consumer, new String(znodes.read("/consumers/" + group + "/ids/" + consumer)));
        Object listener = constructor.newInstance(connector, group, new ZkGroupDirs(group), ours, consumer, new HashMap<String, Object>());
        Method method = kind.getDeclaredMethod("rebalance", io.jafka.cluster.Cluster.class);
        method.setAccessible(true);
        method.invoke(listener, new Object[] {null});
    }

    static void set(Object in, String name, Object value) throws Exception {
        Field field = ZookeeperConsumerConnector.class.getDeclaredField(name);
        unsafe.putObject(in, unsafe.objectFieldOffset(field), value);
    }

    /** register TOPIC THREADS [TOPIC THREADS]...: what a consumer writes of itself. */
    static void register(String[] words, PrintStream out) throws Exception {
        Map<String, Integer> topics = new LinkedHashMap<String, Integer>();
        for (int i = 1; i < words.length; i += 2) topics.put(words[i], Integer.valueOf(words[i + 1]));
        out.println(word(new TopicCount("c", topics).toJsonString().getBytes("UTF-8")));
    }
}
