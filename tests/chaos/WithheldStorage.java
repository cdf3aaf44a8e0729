import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** A remote storage (KIP-405) in a folder of this machine, which gives no records for as long as a file named "withheld" lies there. */
public class WithheldStorage implements RemoteStorageManager {
    private Path folder;

    @Override
    public void configure(Map<String, ?> configs) {
        folder = Path.of((String) configs.get("folder"));
    }

    @Override
    public void close() {
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data) throws RemoteStorageException {
        try {
            Files.createDirectories(folder);
            Files.copy(data.logSegment(), at(segment, "log"));
            Files.copy(data.offsetIndex(), at(segment, IndexType.OFFSET));
            Files.copy(data.timeIndex(), at(segment, IndexType.TIMESTAMP));
            Files.copy(data.producerSnapshotIndex(), at(segment, IndexType.PRODUCER_SNAPSHOT));
            if (data.transactionIndex().isPresent()) {
                Files.copy(data.transactionIndex().get(), at(segment, IndexType.TRANSACTION));
            }
            byte[] epochs = new byte[data.leaderEpochIndex().remaining()];
            data.leaderEpochIndex().duplicate().get(epochs);
            Files.write(at(segment, IndexType.LEADER_EPOCH), epochs);
            return Optional.empty();
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return fetchLogSegment(segment, start, Integer.MAX_VALUE - 1);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end) throws RemoteStorageException {
        try {
            while (Files.exists(folder.resolve("withheld"))) {
                Thread.sleep(100);
            }
            byte[] content = read(at(segment, "log"));
            return new ByteArrayInputStream(content, start, Math.min(content.length, end + 1) - start);
        } catch (InterruptedException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType kind) throws RemoteStorageException {
        return new ByteArrayInputStream(read(at(segment, kind)));
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        try {
            for (IndexType kind : IndexType.values()) {
                Files.deleteIfExists(at(segment, kind));
            }
            Files.deleteIfExists(at(segment, "log"));
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    private Path at(RemoteLogSegmentMetadata segment, Object part) {
        return folder.resolve(segment.remoteLogSegmentId().id() + "." + part);
    }

    private static byte[] read(Path file) throws RemoteStorageException {
        try {
            return Files.readAllBytes(file);
        } catch (NoSuchFileException missing) {
            throw new RemoteResourceNotFoundException(missing);
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }
}
