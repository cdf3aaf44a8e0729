import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HexFormat;
import java.util.Map;

/** Commands as lines on standard input, answers as lines on standard output: each ends with "done", or with "failed" and why. */
abstract class Lines {
    interface Command {
        void run(String[] words, PrintStream out) throws Exception;
    }

    static void serve(Map<String, Command> commands) throws Exception {
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16)); // a line at a time, the other side wakes up for each
        System.setOut(System.err); // what a library prints is no answer
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            try {
                commands.get(words[0]).run(words, out);
                out.println("done");
            } catch (Exception failure) {
                failure.printStackTrace();
                out.println("failed " + String.valueOf(failure).replace('\n', ' '));
            }
            out.flush();
        }
        System.exit(0); // some clients leave threads behind
    }

    /** "-" is null, "x" an empty value, "x6869" the two bytes 68 69. */
    static byte[] bytes(String word) {
        return word.equals("-") ? null : HexFormat.of().parseHex(word.substring(1));
    }

    static String word(byte[] bytes) {
        return bytes == null ? "-" : "x" + HexFormat.of().formatHex(bytes);
    }

    static String word(java.nio.ByteBuffer buffer) {
        if (buffer == null) return "-";
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return word(bytes);
    }

    static java.util.Properties properties(String... pairs) {
        java.util.Properties properties = new java.util.Properties();
        for (int i = 0; i < pairs.length; i += 2) properties.setProperty(pairs[i], pairs[i + 1]);
        return properties;
    }
}
