import java.io.DataOutputStream;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The Java client's usual programs. */
public final class Programs implements Piped.Programs {
    private static final Duration SILENCE_MAX = Duration.ofSeconds(30);

    public static void main(String[] arguments) throws Exception {
        Piped.serve(new Programs());
    }

    @Override
    public void produce(String server, String topic, String codec, String acks, int count) throws Exception {
        Piped.produce(server, codec, acks, count, index -> record(topic, index));
    }

    @Override
    public void consume(String server, String topic, String group, int count, DataOutputStream out)
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
        var record = new ProducerRecord<>(topic, Piped.key(index), Piped.value(index));
        record.headers().add("index", Piped.utf8(Integer.toString(index)));
        if (index % 3 == 0) {
            record.headers().add("empty", new byte[0]);
        }
        return record;
    }

    private static void put(DataOutputStream out, ConsumerRecord<byte[], byte[]> record) throws IOException {
        byte[][] headers = Stream.of(record.headers().toArray())
                .flatMap((Header header) -> Stream.of(Piped.utf8(header.key()), header.value()))
                .toArray(byte[][]::new);
        Piped.put(out, record.partition(), record.offset(), record.key(), record.value(), headers);
    }
}
