import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

/** A producer commits, aborts, is fenced and times out. Arguments: the broker, the topic. */
public class Transactions {
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("transactional.id", arguments[1]);
        topic = arguments[1];
        KafkaProducer<String, String> first = producer(properties);
        begin(first, "committed");
        first.commitTransaction();
        begin(first, "aborted");
        first.abortTransaction();
        begin(first, "again");
        first.commitTransaction();
        begin(first, "fenced");
        properties.put("transaction.timeout.ms", "1000");
        KafkaProducer<String, String> second = producer(properties);
        System.out.println(end(first));
        begin(second, "second");
        second.commitTransaction();
        begin(second, "late");
        System.out.println(endsLate(second));
    }

    private static KafkaProducer<String, String> producer(Properties properties) {
        KafkaProducer<String, String> producer =
            new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    private static void begin(KafkaProducer<String, String> producer, String value) throws Exception {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
    }

    private static String end(KafkaProducer<String, String> producer) {
        try {
            producer.commitTransaction();
            return "committed";
        } catch (KafkaException error) {
            return error.getClass().getSimpleName();
        } finally {
            producer.close();
        }
    }

    /** Sends until the transaction has timed out, and ends it. */
    private static String endsLate(KafkaProducer<String, String> producer) {
        long end = System.nanoTime() + 30_000_000_000L;
        while (System.nanoTime() < end) {
            try {
                producer.send(new ProducerRecord<>(topic, 0, null, "late")).get();
            } catch (Exception error) {
                return end(producer);
            }
        }
        return "30 s without an error";
    }
}
