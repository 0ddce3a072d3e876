import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/** Reads rules and a distinguished name, one a line, and prints the principal, or that no rule applies. */
public class Principals {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        java.io.PrintStream out = new java.io.PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String rules = in.readLine(); rules != null; rules = in.readLine()) {
            String name = in.readLine();
            SslPrincipalMapper mapper;
            try {
                mapper = SslPrincipalMapper.fromRules(rules);
            } catch (IllegalArgumentException error) {
                out.println("no rule");
                continue;
            }
            try {
                out.println("=" + mapper.getName(name));
            } catch (Exception error) {
                out.println("nobody");
            }
        }
    }
}
