import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** One member of a group; see members.py for its arguments and its output. */
public final class Member {
    public static void main(String[] arguments) throws Exception {
        var settings = new Properties();
        for (int index = 1; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        var listener = new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                if (!partitions.isEmpty()) {
                    say("revoked", text(partitions));
                }
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                say("assigned", text(consumer.assignment()));
            }
        };
        if (arguments[0].startsWith("^")) {
            // A broker of the consumer protocol matches RE2 expressions, other groups use Java's.
            if ("consumer".equals(settings.get("group.protocol"))) {
                consumer.subscribe(new SubscriptionPattern(arguments[0]), listener);
            } else {
                consumer.subscribe(Pattern.compile(arguments[0]), listener);
            }
        } else {
            consumer.subscribe(List.of(arguments[0].split(",")), listener);
        }
        var main = Thread.currentThread();
        var closing = new AtomicBoolean();
        var ender = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
                closing.set(true);
                consumer.wakeup();
                main.join();
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        ender.setDaemon(true);
        ender.start();
        try {
            while (!closing.get()) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    say("record", record.topic() + "-" + record.partition() + " " + record.value());
                }
            }
        } catch (WakeupException error) {
            // Standard input ended.
        }
        consumer.close();
        say("closed", "");
    }

    private static String text(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().collect(Collectors.joining(","));
    }

    private static void say(String word, String rest) {
        System.out.println(word + " " + rest);
        System.out.flush();
    }
}
