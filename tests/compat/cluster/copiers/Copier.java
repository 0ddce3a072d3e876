import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The copier for Kafka's client. Arguments: bootstrap servers, from, to, group, transactional id, batch. */
public class Copier {
    public static void main(String[] args) {
        Properties reading = new Properties();
        reading.put("bootstrap.servers", args[0]);
        reading.put("group.id", args[3]);
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("session.timeout.ms", "6000");
        reading.put("max.poll.records", args[5]);
        Properties writing = new Properties();
        writing.put("bootstrap.servers", args[0]);
        writing.put("transactional.id", args[4]);
        writing.put("transaction.timeout.ms", "10000");
        KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        KafkaProducer<String, String> producer =
                new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        consumer.subscribe(List.of(args[1]));
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
            if (records.isEmpty()) {
                continue;
            }
            try {
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    String copy = record.value() + "!";
                    producer.send(new ProducerRecord<>(args[2], record.partition(), record.key(), copy));
                    offsets.put(
                            new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
            } catch (ProducerFencedException | OutOfOrderSequenceException fatal) {
                throw fatal;
            } catch (KafkaException failed) {
                producer.abortTransaction();
                rewind(consumer);
            }
        }
    }

    /** Goes back to the committed offsets. */
    private static void rewind(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        committed.forEach((partition, at) -> consumer.seek(partition, at == null ? 0 : at.offset()));
    }
}
