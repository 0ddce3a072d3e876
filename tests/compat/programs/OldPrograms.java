import java.io.DataOutputStream;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The usual programs of the Java client before 0.11, which has no headers. */
public final class OldPrograms implements Piped.Programs {
    private static final long SILENCE_MAX_MS = 30_000;

    public static void main(String[] arguments) throws Exception {
        Piped.serve(new OldPrograms());
    }

    @Override
    public void produce(String server, String topic, String codec, String acks, int count) throws Exception {
        Piped.produce(
                server, codec, acks, count,
                index -> new ProducerRecord<>(topic, Piped.key(index), Piped.value(index)));
    }

    @Override
    public void consume(String server, String topic, String group, int count, DataOutputStream out)
            throws IOException {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", server, "group.id", group, "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            long heard = System.nanoTime();
            for (int read = 0; read < count; ) {
                // These clients return nothing after any other response than records.
                ConsumerRecords<byte[], byte[]> records = consumer.poll(SILENCE_MAX_MS);
                if (!records.isEmpty()) {
                    heard = System.nanoTime();
                } else if (System.nanoTime() - heard > SILENCE_MAX_MS * 1_000_000) {
                    throw new IllegalStateException("no record came after " + read);
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    Piped.put(out, record.partition(), record.offset(), record.key(), record.value());
                }
                read += records.count();
            }
        }
    }
}
