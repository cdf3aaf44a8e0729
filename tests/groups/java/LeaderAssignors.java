import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/** What the leader of a group assigns when it is Kafka's consumer in Java; and what Java's regular expressions match. */
public class LeaderAssignors extends Lines {
    public static void main(String[] arguments) throws Exception {
        serve(Map.of("assign", LeaderAssignors::assign, "matches", LeaderAssignors::matches, "finds", LeaderAssignors::finds));
    }

    /** assign STRATEGY TOPICS [MEMBER INSTANCE TOPICS]...: topics are "t=3,u=1" first, "t,u" for a member; "-" is none. "MEMBER TOPIC P". */
    static void assign(String[] words, PrintStream out) throws Exception {
        Node node = new Node(1, "h", 1);
        List<PartitionInfo> partitions = new ArrayList<PartitionInfo>();
        for (String one : listed(words[2])) {
            String[] parts = one.split("=");
            for (int p = 0; p < Integer.parseInt(parts[1]); p++) {
                partitions.add(new PartitionInfo(parts[0], p, node, new Node[] {node}, new Node[] {node}));
            }
        }
        Map<String, Subscription> members = new TreeMap<String, Subscription>();
        for (int i = 3; i < words.length; i += 3) {
            Subscription one = new Subscription(listed(words[i + 2]));
            if (!words[i + 1].equals("-")) one.setGroupInstanceId(Optional.of(words[i + 1]));
            members.put(words[i], one);
        }
        Cluster cluster = new Cluster("c", Arrays.asList(node), partitions, new HashSet<String>(), new HashSet<String>());
        ConsumerPartitionAssignor assignor = words[1].equals("range") ? new RangeAssignor() : new RoundRobinAssignor();
        Map<String, Assignment> found = assignor.assign(cluster, new GroupSubscription(members)).groupAssignment();
        for (Map.Entry<String, Assignment> one : found.entrySet()) {
            for (TopicPartition log : one.getValue().partitions()) out.println(one.getKey() + " " + log.topic() + " " + log.partition());
        }
    }

    static List<String> listed(String word) {
        return word.equals("-") ? new ArrayList<String>() : Arrays.asList(word.split(","));
    }

    /** matches NAMES PATTERN...: for each pattern a line of 0 and 1, one for each name (with commas between), or "refused". */
    static void matches(String[] words, PrintStream out) throws Exception {
        answer(words, out, Matcher::matches);
    }

    /** finds NAMES PATTERN...: the same, where the pattern is found anywhere in the name. */
    static void finds(String[] words, PrintStream out) throws Exception {
        answer(words, out, Matcher::find);
    }

    static void answer(String[] words, PrintStream out, Predicate<Matcher> question) throws Exception {
        String[] names = words[1].split(",");
        for (int i = 2; i < words.length; i++) {
            StringBuilder line = new StringBuilder();
            try {
                Pattern pattern = Pattern.compile(new String(bytes(words[i]), "UTF-8"));
                for (String name : names) line.append(question.test(pattern.matcher(name)) ? '1' : '0');
            } catch (java.util.regex.PatternSyntaxException refused) {
                line = new StringBuilder("refused");
            }
            out.println(line);
        }
    }
}
