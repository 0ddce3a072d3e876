import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** For each properties file: sends records to partition 0, reads them, and prints their number or an error. */
public class OverTls {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[1]);
        for (int number = 2; number < arguments.length; number++) {
            Properties properties = new Properties();
            try (FileReader reader = new FileReader(arguments[number])) {
                properties.load(reader);
            }
            System.out.println(run(properties, arguments[0], count));
        }
    }

    private static String run(Properties properties, String topic, int count) throws Exception {
        ByteArraySerializer writes = new ByteArraySerializer();
        TopicPartition partition = new TopicPartition(topic, 0);
        long first;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties, writes, writes)) {
            first = producer.send(new ProducerRecord<>(topic, 0, null, new byte[] {0})).get().offset();
            for (int number = 1; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, 0, null, new byte[1000]));
            }
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
        ByteArrayDeserializer reads = new ByteArrayDeserializer();
        int found = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties, reads, reads)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, first);
            while (found < count) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(30));
                if (records.isEmpty()) {
                    return found + " records, and then nothing for 30 s";
                }
                found += records.count();
            }
        }
        return found + " records";
    }
}
