import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.zookeeper.client.ConnectStringParser;
import org.apache.zookeeper.client.HostProvider;

/** The servers of a connect string in the given order; ZooKeeper's own provider shuffles them. */
final class InOrder implements HostProvider {
    private final List<InetSocketAddress> servers = new ArrayList<>();
    private int next;

    InOrder(String list) {
        servers.addAll(new ConnectStringParser(list).getServerAddresses());
    }

    @Override
    public int size() {
        return servers.size();
    }

    @Override
    public InetSocketAddress next(long spinDelay) {
        InetSocketAddress server = servers.get(next % servers.size());
        next++;
        return new InetSocketAddress(server.getHostString(), server.getPort());
    }

    @Override
    public void onConnected() {}

    @Override
    public boolean updateServerList(Collection<InetSocketAddress> addresses, InetSocketAddress current) {
        return false;
    }
}
