package offset_range_etl;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3: a file of it is made by one put that the store refuses where there is one of its name ("If-None-Match: *").
 *
 * So commits of several drivers, and those of delta-rs, which puts in the same way, keep one another out (docs/adr/0035).
 */
public class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

    public ConditionalLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
        FileSystem files = path.getFileSystem(conf);
        if (overwrite) {
            put(files.create(path, true), actions);
            return;
        }
        if (!files.hasPathCapability(path, CONDITIONAL)) {
            throw new UnsupportedOperationException(
                files.getClass().getName() + " puts nothing on a condition (" + CONDITIONAL + "): a commit could replace another one");
        }
        FSDataOutputStreamBuilder<?, ?> once = files.createFile(path);
        once.must(CONDITIONAL, true);
        try {
            put(once.build(), actions);
        } catch (IOException refused) {
            if (isThere(refused)) {
                FileAlreadyExistsException told = new FileAlreadyExistsException(path.toString());
                told.initCause(refused);
                throw told;
            }
            throw refused;
        }
    }

    /** Nothing is there before the end, and nothing at all where the actions fail on the way: closed then, half of them would be. */
    private static void put(FSDataOutputStream out, Iterator<String> actions) throws IOException {
        try {
            while (actions.hasNext()) {
                out.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
            }
        } catch (IOException | RuntimeException | Error failed) {
            out.abort();
            throw failed;
        }
        out.close();
    }

    private static boolean isThere(Throwable error) {
        for (Throwable one = error; one != null; one = one.getCause()) {
            String name = one.getClass().getSimpleName();
            if (name.equals("RemoteFileChangedException") || name.equals("FileAlreadyExistsException")) {
                return true;
            }
        }
        return false;
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration conf) {
        return false;
    }
}
