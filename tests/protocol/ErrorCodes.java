import org.apache.kafka.common.errors.InvalidMetadataException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

/** Prints Apache Kafka's error codes: number, name, and whether a client retries never, later or after a refresh. */
public class ErrorCodes {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            String retry = error.exception() instanceof InvalidMetadataException ? "refresh"
                : error.exception() instanceof RetriableException ? "later"
                : "never";
            System.out.println(error.code() + " " + error.name() + " " + retry);
        }
    }
}
