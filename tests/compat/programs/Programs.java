import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client's ordinary programs behind a pipe. What is asked and answered is in piped.py, what a record is made of in
 * records.py.
 */
public final class Programs {
    private static final Duration SILENCE_MAX = Duration.ofSeconds(30);

    private Programs() {}

    public static void main(String[] arguments) throws Exception {
        var commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        String command;
        while ((command = commands.readLine()) != null) {
            String[] words = command.split(" ");
            if (words[0].equals("produce")) {
                produce(words[1], words[2], words[3], words[4], Integer.parseInt(words[5]));
            } else {
                consume(words[1], words[2], words[3], Integer.parseInt(words[4]), out);
            }
            out.writeInt(0);
            out.flush();
        }
    }

    private static void produce(String server, String topic, String codec, String acks, int count) throws Exception {
        var failed = new AtomicReference<Exception>();
        Map<String, Object> settings = Map.of("bootstrap.servers", server, "compression.type", codec, "acks", acks);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int index = 0; index < count; index++) {
                producer.send(record(topic, index), (where, error) -> {
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

    private static void consume(String server, String topic, String group, int count, DataOutputStream out)
            throws IOException {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", server, "group.id", group, "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int read = 0; read < count; ) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(SILENCE_MAX);
                if (records.isEmpty()) {
                    throw new IllegalStateException("no record came after " + read);
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    put(out, record);
                }
                read += records.count();
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, int index) {
        byte[] key = index % 10 == 9 ? null : utf8("key-" + index % 5003);
        byte[] value = index % 100 == 50 ? null : value(index);
        var record = new ProducerRecord<>(topic, key, value);
        record.headers().add("index", utf8(Integer.toString(index)));
        if (index % 3 == 0) {
            record.headers().add("empty", new byte[0]);
        }
        return record;
    }

    private static byte[] value(int index) {
        int size = index % 1000 == 999 ? 10_000 : (int) (index * 37L % 200);
        ByteBuffer value = ByteBuffer.allocate(8 + size).putLong(index);
        for (int place = 0; place < size; place++) {
            value.put((byte) (index + place));
        }
        return value.array();
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void put(DataOutputStream out, ConsumerRecord<byte[], byte[]> record) throws IOException {
        var bytes = new ByteArrayOutputStream();
        var frame = new DataOutputStream(bytes);
        frame.writeInt(record.partition());
        frame.writeLong(record.offset());
        put(frame, record.key());
        put(frame, record.value());
        Header[] headers = record.headers().toArray();
        frame.writeInt(headers.length);
        for (Header header : headers) {
            put(frame, utf8(header.key()));
            put(frame, header.value());
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
