import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntFunction;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The common parts of every Java client: the pipe (see piped.py) and the records (see records.py). */
final class Piped {
    private Piped() {}

    /** A client's usual programs. */
    interface Programs {
        void produce(String server, String topic, String codec, String acks, int count) throws Exception;

        void consume(String server, String topic, String group, int count, DataOutputStream out) throws Exception;
    }

    static void serve(Programs programs) throws Exception {
        var commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        String command;
        while ((command = commands.readLine()) != null) {
            String[] words = command.split(" ");
            if (words[0].equals("produce")) {
                programs.produce(words[1], words[2], words[3], words[4], Integer.parseInt(words[5]));
            } else {
                programs.consume(words[1], words[2], words[3], Integer.parseInt(words[4]), out);
            }
            out.writeInt(0);
            out.flush();
        }
    }

    /** Sends the first `count` records; returns when all are delivered. */
    static void produce(
            String server, String codec, String acks, int count, IntFunction<ProducerRecord<byte[], byte[]>> record)
            throws Exception {
        var failed = new AtomicReference<Exception>();
        Map<String, Object> settings = Map.of("bootstrap.servers", server, "compression.type", codec, "acks", acks);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int index = 0; index < count; index++) {
                producer.send(record.apply(index), (where, error) -> {
                    if (error != null) {
                        failed.set(error);
                    }
                });
            }
        }
        if (failed.get() != null) {
            throw failed.get();
        }
    }

    static byte[] key(int index) {
        return index % 10 == 9 ? null : utf8("key-" + index % 5003);
    }

    static byte[] value(int index) {
        if (index % 100 == 50) {
            return null;
        }
        int size = index % 1000 == 999 ? 10_000 : (int) (index * 37L % 200);
        ByteBuffer value = ByteBuffer.allocate(8 + size).putLong(index);
        for (int place = 0; place < size; place++) {
            value.put((byte) (index + place));
        }
        return value.array();
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** One consumed record; names and values of its headers alternate. */
    static void put(DataOutputStream out, int partition, long offset, byte[] key, byte[] value, byte[]... headers)
            throws IOException {
        var bytes = new ByteArrayOutputStream();
        var frame = new DataOutputStream(bytes);
        frame.writeInt(partition);
        frame.writeLong(offset);
        put(frame, key);
        put(frame, value);
        frame.writeInt(headers.length / 2);
        for (byte[] part : headers) {
            put(frame, part);
        }
        out.writeInt(bytes.size());
        bytes.writeTo(out);
    }

    private static void put(DataOutputStream out, byte[] bytes) throws IOException {
        out.writeInt(bytes == null ? -1 : bytes.length);
        if (bytes != null) {
            out.write(bytes);
        }
    }
}
