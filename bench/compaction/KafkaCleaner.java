import java.io.File;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import kafka.log.Cleaner;
import kafka.log.LogToClean;
import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.utils.Throttler;
import scala.Option;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Compacts directories one after another with Apache Kafka's Cleaner, the broker's default buffers and no
 * throttle. All run in one JVM, so the first warms it up. Prints a line of JSON for each.
 */
public final class KafkaCleaner {
    public static void main(String[] dirs) throws Exception {
        Properties properties = new Properties();
        properties.put("cleanup.policy", "compact");
        properties.put("segment.bytes", Integer.toString(128 << 20));
        properties.put("retention.ms", "-1");
        LogConfig config = new LogConfig(properties);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        for (String dir : dirs) {
            clean(new File(dir), config, scheduler);
        }
        scheduler.shutdown();
        // Threads of the metrics library would keep the JVM alive.
        System.exit(0);
    }

    private static void clean(File dir, LogConfig config, KafkaScheduler scheduler) throws Exception {
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(128 << 20), 512 * 1024 / 2, 1 << 20, 0.9,
            throttler, Time.SYSTEM, new AbstractFunction1<TopicPartition, BoxedUnit>() {
                @Override
                public BoxedUnit apply(TopicPartition partition) {
                    return BoxedUnit.UNIT;
                }
            });
        UnifiedLog log = UnifiedLog.apply(dir, config, 0, Long.MAX_VALUE, scheduler,
            new BrokerTopicStats(false), Time.SYSTEM, 300_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1), true,
            Option.empty(), true, new ConcurrentHashMap<>(), false,
            LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
        TopicPartition partition = UnifiedLog.parseTopicPartitionName(dir);
        long bytes = log.size();
        long from = log.logStartOffset();
        long until = log.activeSegment().baseOffset();
        long began = System.nanoTime();
        // As in the broker: each pass begins where the map was full, until all is clean.
        while (from < until) {
            from = (Long) cleaner.clean(new LogToClean(partition, log, from, until, false))._1();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        System.out.println(String.format(Locale.ROOT,
            "{\"cleaner\": \"kafka\", \"bytes\": %d, \"left\": %d, "
                + "\"seconds\": %.3f, \"mb_per_second\": %.1f}",
            bytes, log.size(), seconds, bytes / 1e6 / seconds));
        log.close();
    }
}
