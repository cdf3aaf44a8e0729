import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.FileInputStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Iterator;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * What Spark's JVM does with the rows of a Python data source before anybody takes them, by Spark's own classes, in one thread.
 *
 * Arguments: rounds, files with Arrow streams of one struct column. Printed for each file: its name, and of its quickest round the
 * microseconds of CPU for a row, and how many of them are reading the stream.
 */
public class ArrowRows {
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();

    public static void main(String[] words) throws Exception {
        BufferAllocator root = new RootAllocator();
        double[][] best = new double[words.length][];
        for (int round = 0; round < Integer.parseInt(words[0]); round++) {
            for (int at = 1; at < words.length; at++) {
                double[] once = read(words[at], root);
                best[at] = best[at] == null || once[0] < best[at][0] ? once : best[at];
            }
        }
        for (int at = 1; at < words.length; at++) {
            System.out.printf("%s %.3f %.3f%n", words[at], best[at][0], best[at][1]);
        }
    }

    static double[] read(String file, BufferAllocator root) throws Exception {
        long began = CLOCK.getCurrentThreadCpuTime(), reading = 0, rows = 0;
        DataInputStream bytes = new DataInputStream(new BufferedInputStream(new FileInputStream(file), 1 << 16));
        try (BufferAllocator memory = root.newChildAllocator(file, 0, Long.MAX_VALUE);
             ArrowStreamReader stream = new ArrowStreamReader(bytes, memory)) {
            VectorSchemaRoot vectors = stream.getVectorSchemaRoot();
            StructType kind = (StructType) ArrowUtils.fromArrowSchema(vectors.getSchema()).fields()[0].dataType();
            UnsafeProjection made = UnsafeProjection.create(kind);
            long before = CLOCK.getCurrentThreadCpuTime();
            while (stream.loadNextBatch()) {
                reading += CLOCK.getCurrentThreadCpuTime() - before;
                ArrowColumnVector struct = new ArrowColumnVector(vectors.getFieldVectors().get(0));
                ColumnVector[] columns = new ColumnVector[kind.length()];
                for (int at = 0; at < columns.length; at++) {
                    columns[at] = struct.getChild(at);
                }
                ColumnarBatch batch = new ColumnarBatch(columns);
                batch.setNumRows(vectors.getRowCount());
                for (Iterator<InternalRow> each = batch.rowIterator(); each.hasNext(); rows++) {
                    made.apply(each.next());
                }
                before = CLOCK.getCurrentThreadCpuTime();
            }
        }
        return new double[] {(CLOCK.getCurrentThreadCpuTime() - began) / 1e3 / rows, reading / 1e3 / rows};
    }
}
