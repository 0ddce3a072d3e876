// Writes this directory's golden files with Apache Kafka's classes, or reads our batches with them.
//
//   java -cp kafka-clients-3.9.1.jar:lz4-java.jar:snappy-java.jar:zstd-jni.jar:slf4j-api.jar \
//       GoldenBatches.java write DIRECTORY
//   java -cp ... GoldenBatches.java read FILE...
//
// The jars come with Apache Kafka 3.9.1. `read` checks checksums and prints every record.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;

public class GoldenBatches {
    static final long BASE_OFFSET = 10;
    static final long TIME = 1_700_000_000_000L;

    public static void main(String[] args) throws Exception {
        if (args[0].equals("write")) {
            write(Path.of(args[1]));
        } else {
            for (String file : Arrays.copyOfRange(args, 1, args.length)) {
                read(Path.of(file));
            }
        }
    }

    static void write(Path directory) throws Exception {
        for (byte magic = 0; magic <= 2; magic++) {
            for (CompressionType type : CompressionType.values()) {
                if (type == CompressionType.ZSTD && magic < 2) {
                    continue;
                }
                TimestampType time = magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE : TimestampType.CREATE_TIME;
                String name = "v" + magic + "-" + type.name + ".bin";
                save(directory.resolve(name), records(magic, type, time, -1L, (short) -1, -1, false));
            }
        }
        save(directory.resolve("v1-gzip-append-time.bin"),
            records((byte) 1, CompressionType.GZIP, TimestampType.LOG_APPEND_TIME,
                -1L, (short) -1, -1, false));
        save(directory.resolve("v2-none-append-time.bin"),
            records((byte) 2, CompressionType.NONE, TimestampType.LOG_APPEND_TIME,
                -1L, (short) -1, -1, false));
        save(directory.resolve("v2-none-transactional.bin"),
            records((byte) 2, CompressionType.NONE, TimestampType.CREATE_TIME, 4711L, (short) 3, 17, true));
        save(directory.resolve("v2-control.bin"), MemoryRecords.withEndTransactionMarker(BASE_OFFSET, TIME, 5,
            4711L, (short) 3, new EndTransactionMarker(ControlRecordType.COMMIT, 9)));
    }

    static MemoryRecords records(byte magic, CompressionType type, TimestampType time, long producerId,
                                 short epoch, int sequence, boolean transactional) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(4096), magic,
            Compression.of(type).build(), time, BASE_OFFSET, TIME + 500, producerId, epoch, sequence,
            transactional, 7);
        Header[] headers = magic < 2 ? new Header[0]
            : new Header[] {new RecordHeader("h", bytes("x")), new RecordHeader("h", (byte[]) null)};
        byte[] longValue = new byte[300];
        Arrays.fill(longValue, (byte) 'a');
        long first = magic == 0 ? RecordBatch.NO_TIMESTAMP : TIME;
        long second = magic == 0 ? RecordBatch.NO_TIMESTAMP : TIME - 7;
        builder.append(first, bytes("k1"), bytes("v1"), headers);
        builder.append(second, null, longValue);
        builder.append(first, bytes("k3"), null);
        return builder.build();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void save(Path path, MemoryRecords records) throws Exception {
        ByteBuffer buffer = records.buffer().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        Files.write(path, bytes);
    }

    static void read(Path path) throws Exception {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(path)));
        for (RecordBatch batch : records.batches()) {
            batch.ensureValid();
            System.out.println(path.getFileName() + ": " + batch);
            for (Record record : batch) {
                record.ensureValid();
                System.out.println("  " + record.offset() + " " + record.timestamp()
                    + " key " + record.keySize()
                    + " value " + record.valueSize() + " headers " + Arrays.toString(record.headers()));
            }
        }
        System.out.println(path.getFileName() + ": " + records.validBytes() + " valid bytes");
    }
}
