import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.common.TopicPartitionReplica;

/** Moves one partition's log: bootstrap servers, topic, partition, broker, directory. Prints the result. */
public class MoveLog {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> config = Map.of(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        int partition = Integer.parseInt(arguments[2]);
        int broker = Integer.parseInt(arguments[3]);
        TopicPartitionReplica replica = new TopicPartitionReplica(arguments[1], partition, broker);
        try (Admin admin = Admin.create(config)) {
            admin.alterReplicaLogDirs(Map.of(replica, arguments[4])).all().get();
            System.out.println("moving");
        } catch (java.util.concurrent.ExecutionException error) {
            System.out.println(error.getCause().getClass().getSimpleName());
        }
    }
}
