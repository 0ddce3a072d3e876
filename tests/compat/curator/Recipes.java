import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.api.transaction.CuratorOp;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.ChildData;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/**
 * Runs each of Curator's recipes with several clients, each on the first server of its list.
 *
 * <p>Arguments: the parent of all nodes, then each client's list of host:port. Prints a line for each recipe:
 * its name, then "ok" or the error.
 */
public final class Recipes {
    private static final long WAIT_SECONDS = 20;

    private interface Recipe {
        void run(String path) throws Exception;
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final List<CuratorFramework> clients = new ArrayList<>();
    private final List<String> hosts;

    private Recipes(List<String> hosts) throws InterruptedException {
        this.hosts = hosts;
        for (int number = 0; number < hosts.size(); number++) {
            clients.add(started(number));
        }
    }

    public static void main(String[] arguments) throws Exception {
        var recipes = new Recipes(Arrays.asList(arguments).subList(1, arguments.length));
        for (Map.Entry<String, Recipe> each : recipes.all().entrySet()) {
            String result = "ok";
            try {
                each.getValue().run(arguments[0] + "/" + each.getKey());
            } catch (Throwable error) {
                result = error.toString() + " at " + Arrays.asList(error.getStackTrace());
            }
            System.out.println(each.getKey() + " " + result.replace('\n', ' '));
        }
        recipes.clients.forEach(CuratorFramework::close);
        System.exit(0);
    }

    private Map<String, Recipe> all() {
        Map<String, Recipe> recipes = new LinkedHashMap<>();
        recipes.put("mutex", this::mutex);
        recipes.put("read-write-lock", this::readWriteLock);
        recipes.put("semaphore", this::semaphore);
        recipes.put("leader-selector", this::leaderSelector);
        recipes.put("leader-latch", this::leaderLatch);
        recipes.put("path-children-cache", this::pathChildrenCache);
        recipes.put("curator-cache", this::curatorCache);
        recipes.put("tree-cache", this::treeCache);
        recipes.put("atomic-long", this::atomicLong);
        recipes.put("shared-count", this::sharedCount);
        recipes.put("barrier", this::barrier);
        recipes.put("double-barrier", this::doubleBarrier);
        recipes.put("queue", this::queue);
        recipes.put("simple-queue", this::simpleQueue);
        recipes.put("persistent-node", this::persistentNode);
        recipes.put("ttl-node", this::ttlNode);
        recipes.put("group-member", this::groupMember);
        recipes.put("persistent-watcher", this::persistentWatcher);
        recipes.put("transactions", this::transactions);
        recipes.put("containers", this::containers);
        return recipes;
    }

    private CuratorFramework started(int number) throws InterruptedException {
        CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(hosts.get(number))
                .sessionTimeoutMs(10_000)
                .connectionTimeoutMs(10_000)
                .retryPolicy(new RetryOneTime(100))
                .zookeeperFactory((list, timeout, watcher, readOnly) ->
                        new ZooKeeper(list, timeout, watcher, readOnly, new InOrder(list)))
                .build();
        client.start();
        boolean connected = client.blockUntilConnected((int) WAIT_SECONDS, TimeUnit.SECONDS);
        check(connected, "client " + number + " is not connected");
        return client;
    }

    // ---- recipes ----

    private void mutex(String path) throws Exception {
        var inside = new AtomicInteger();
        int[] count = new int[1];
        together(client -> {
            var mutex = new InterProcessMutex(client, path);
            for (int round = 0; round < 5; round++) {
                check(mutex.acquire(WAIT_SECONDS, TimeUnit.SECONDS), "no lock");
                check(mutex.acquire(WAIT_SECONDS, TimeUnit.SECONDS), "the holder cannot lock again");
                check(inside.incrementAndGet() == 1, "two clients hold the lock");
                count[0]++;
                inside.decrementAndGet();
                mutex.release();
                mutex.release();
            }
        });
        check(count[0] == 5 * clients.size(), "the lock was held " + count[0] + " times");
    }

    private void readWriteLock(String path) throws Exception {
        var reading = new InterProcessReadWriteLock(clients.get(0), path);
        var alsoReading = new InterProcessReadWriteLock(clients.get(1), path);
        var writing = new InterProcessReadWriteLock(clients.get(2), path);
        check(reading.readLock().acquire(WAIT_SECONDS, TimeUnit.SECONDS), "no read lock");
        check(alsoReading.readLock().acquire(WAIT_SECONDS, TimeUnit.SECONDS), "no second read lock");
        check(!writing.writeLock().acquire(100, TimeUnit.MILLISECONDS), "a write lock beside read locks");
        reading.readLock().release();
        alsoReading.readLock().release();
        check(writing.writeLock().acquire(WAIT_SECONDS, TimeUnit.SECONDS), "no write lock");
        check(!reading.readLock().acquire(100, TimeUnit.MILLISECONDS), "a read lock beside a write lock");
        writing.writeLock().release();
    }

    private void semaphore(String path) throws Exception {
        var semaphores =
                clients.stream().map(client -> new InterProcessSemaphoreV2(client, path, 2)).toList();
        Lease first = semaphores.get(0).acquire(WAIT_SECONDS, TimeUnit.SECONDS);
        Lease second = semaphores.get(1).acquire(WAIT_SECONDS, TimeUnit.SECONDS);
        check(first != null && second != null, "no lease");
        check(semaphores.get(2).acquire(100, TimeUnit.MILLISECONDS) == null, "a third lease, of two");
        semaphores.get(0).returnLease(first);
        Lease third = semaphores.get(2).acquire(WAIT_SECONDS, TimeUnit.SECONDS);
        check(third != null, "no lease after one was returned");
        semaphores.get(1).returnLease(second);
        semaphores.get(2).returnLease(third);
    }

    private void leaderSelector(String path) throws Exception {
        var led = new CountDownLatch(clients.size());
        var leaders = new AtomicInteger();
        Set<String> wrong = ConcurrentHashMap.newKeySet();
        List<LeaderSelector> selectors = new ArrayList<>();
        for (CuratorFramework each : clients) {
            var selector = new LeaderSelector(each, path, new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework client) {
                    if (leaders.incrementAndGet() != 1) {
                        wrong.add("two lead");
                    }
                    leaders.decrementAndGet();
                    led.countDown();
                }
            });
            selectors.add(selector);
            selector.start();
        }
        check(led.await(WAIT_SECONDS, TimeUnit.SECONDS), led.getCount() + " never led");
        check(wrong.isEmpty(), wrong.toString());
        selectors.forEach(LeaderSelector::close);
    }

    private void leaderLatch(String path) throws Exception {
        List<LeaderLatch> latches = new ArrayList<>();
        for (CuratorFramework each : clients) {
            var latch = new LeaderLatch(each, path);
            latch.start();
            latches.add(latch);
        }
        for (int left = clients.size(); left > 0; left--) {
            eventually("a leader", () -> latches.stream().anyMatch(LeaderLatch::hasLeadership));
            check(latches.stream().filter(LeaderLatch::hasLeadership).count() == 1, "two lead");
            LeaderLatch leader = latches.stream().filter(LeaderLatch::hasLeadership).findFirst().get();
            latches.remove(leader);
            leader.close();
        }
    }

    private void pathChildrenCache(String path) throws Exception {
        clients.get(0).create().creatingParentsIfNeeded().forPath(path);
        try (var cache = new PathChildrenCache(clients.get(1), path, true)) {
            cache.start(PathChildrenCache.StartMode.POST_INITIALIZED_EVENT);
            for (int number = 0; number < 10; number++) {
                clients.get(0).create().forPath(path + "/" + number, utf8("first"));
                clients.get(2).setData().forPath(path + "/" + number, utf8("n" + number));
            }
            clients.get(0).delete().forPath(path + "/3");
            eventually("all children in the cache", () -> cache.getCurrentData().size() == 9
                    && cache.getCurrentData().stream().allMatch(each -> text(each).equals("n" + name(each))));
        }
    }

    private void curatorCache(String path) throws Exception {
        clients.get(0).create().creatingParentsIfNeeded().forPath(path);
        Map<String, String> seen = new ConcurrentHashMap<>();
        try (CuratorCache cache = CuratorCache.build(clients.get(1), path)) {
            cache.listenable().addListener((type, before, after) -> {
                switch (type) {
                    case NODE_DELETED -> seen.remove(before.getPath());
                    default -> seen.put(after.getPath(), text(after));
                }
            });
            cache.start();
            Map<String, String> wanted = changed(path);
            eventually("the tree", () -> {
                var found = new TreeMap<>(seen);
                found.remove(path);
                return found.equals(wanted);
            });
        }
    }

    private void treeCache(String path) throws Exception {
        clients.get(0).create().creatingParentsIfNeeded().forPath(path);
        try (var cache = new TreeCache(clients.get(1), path)) {
            cache.start();
            Map<String, String> wanted = changed(path);
            eventually("the tree", () -> {
                for (Map.Entry<String, String> each : wanted.entrySet()) {
                    ChildData data = cache.getCurrentData(each.getKey());
                    if (data == null || !text(data).equals(each.getValue())) {
                        return false;
                    }
                }
                return cache.getCurrentData(path + "/1/below") == null;
            });
        }
    }

    private Map<String, String> changed(String path) throws Exception {
        Map<String, String> wanted = new TreeMap<>();
        for (int number = 0; number < 10; number++) {
            String node = path + "/" + number;
            clients.get(0).create().forPath(node, utf8("first"));
            String below = node + "/below";
            clients.get(2).create().orSetData().creatingParentsIfNeeded().forPath(below, utf8("below"));
            clients.get(0).setData().forPath(node, utf8("n" + number));
            wanted.put(node, "n" + number);
            wanted.put(node + "/below", "below");
        }
        clients.get(2).delete().forPath(path + "/1/below");
        wanted.remove(path + "/1/below");
        return wanted;
    }

    private void atomicLong(String path) throws Exception {
        together(client -> {
            var number = new DistributedAtomicLong(client, path, new RetryOneTime(1));
            for (int added = 0; added < 10; ) {
                AtomicValue<Long> value = number.increment();
                if (value.succeeded()) {
                    check(value.postValue() == value.preValue() + 1, "incremented to " + value.postValue());
                    added++;
                }
            }
        });
        for (CuratorFramework client : clients) {
            client.sync().forPath(path);
            long value = new DistributedAtomicLong(client, path, new RetryOneTime(1)).get().postValue();
            check(value == 10L * clients.size(), "the count is " + value);
        }
    }

    private void sharedCount(String path) throws Exception {
        var one = new SharedCount(clients.get(0), path, 5);
        var two = new SharedCount(clients.get(1), path, 7);
        one.start();
        two.start();
        one.setCount(9);
        eventually("the first client's count at the second", () -> two.getCount() == 9);
        check(two.trySetCount(two.getVersionedValue(), 10), "the version is not the newest");
        eventually("the second client's count at the first", () -> one.getCount() == 10);
        one.close();
        two.close();
    }

    private void barrier(String path) throws Exception {
        var set = new DistributedBarrier(clients.get(0), path);
        set.setBarrier();
        clients.get(1).sync().forPath(path);
        var other = new DistributedBarrier(clients.get(1), path);
        check(!other.waitOnBarrier(100, TimeUnit.MILLISECONDS), "the barrier does not exist");
        var third = new DistributedBarrier(clients.get(1), path);
        Future<Boolean> passed = threads.submit(() -> third.waitOnBarrier(WAIT_SECONDS, TimeUnit.SECONDS));
        set.removeBarrier();
        check(passed.get(WAIT_SECONDS, TimeUnit.SECONDS), "the barrier still exists");
    }

    private void doubleBarrier(String path) throws Exception {
        var inside = new AtomicInteger();
        together(client -> {
            var barrier = new DistributedDoubleBarrier(client, path, clients.size());
            inside.incrementAndGet();
            check(barrier.enter(WAIT_SECONDS, TimeUnit.SECONDS), "not all entered");
            check(inside.get() == clients.size(), "a client entered before the last one arrived");
            check(barrier.leave(WAIT_SECONDS, TimeUnit.SECONDS), "not all left");
        });
    }

    private void queue(String path) throws Exception {
        var got = Collections.synchronizedList(new ArrayList<String>());
        var consumer = new QueueConsumer<String>() {
            @Override
            public void consumeMessage(String message) {
                got.add(message);
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {}
        };
        var serializer = new QueueSerializer<String>() {
            @Override
            public byte[] serialize(String item) {
                return utf8(item);
            }

            @Override
            public String deserialize(byte[] bytes) {
                return new String(bytes, UTF_8);
            }
        };
        var input = QueueBuilder.builder(clients.get(0), null, serializer, path);
        var output = QueueBuilder.builder(clients.get(1), consumer, serializer, path).lockPath(path + "-lock");
        try (DistributedQueue<String> in = input.buildQueue();
                DistributedQueue<String> out = output.buildQueue()) {
            in.start();
            out.start();
            List<String> put = new ArrayList<>();
            for (int number = 0; number < 20; number++) {
                put.add("item " + number);
                in.put("item " + number);
                check(in.flushPuts(WAIT_SECONDS, TimeUnit.SECONDS), "not put");
            }
            eventually("the items", () -> got.size() == put.size());
            check(got.equals(put), "the order of the items is " + got);
        }
    }

    private void simpleQueue(String path) throws Exception {
        var in = new SimpleDistributedQueue(clients.get(0), path);
        var out = new SimpleDistributedQueue(clients.get(1), path);
        Future<byte[]> waiting = threads.submit(() -> out.poll(WAIT_SECONDS, TimeUnit.SECONDS));
        in.offer(utf8("one"));
        check(new String(waiting.get(WAIT_SECONDS, TimeUnit.SECONDS), UTF_8).equals("one"), "another item");
        in.offer(utf8("two"));
        in.offer(utf8("three"));
        clients.get(1).sync().forPath(path);
        check(new String(out.take(), UTF_8).equals("two"), "not the second item");
        check(new String(out.take(), UTF_8).equals("three"), "not the third item");
    }

    private void persistentNode(String path) throws Exception {
        CuratorFramework own = started(0);
        try (var node = new PersistentNode(own, CreateMode.EPHEMERAL, false, path, utf8("data"))) {
            node.start();
            check(node.waitForInitialCreate(WAIT_SECONDS, TimeUnit.SECONDS), "not created");
            long owner = own.checkExists().forPath(path).getEphemeralOwner();
            long session = own.getZookeeperClient().getZooKeeper().getSessionId();
            check(owner == session, "another session owns the node");
            clients.get(1).sync().forPath(path);
            clients.get(1).delete().forPath(path);
            eventually("the node made again", () -> clients.get(1).checkExists().forPath(path) != null);
        }
        own.close();
        eventually("the deletion with the session", () -> clients.get(1).checkExists().forPath(path) == null);
    }

    private void ttlNode(String path) throws Exception {
        try (var node = new PersistentTtlNode(clients.get(0), path, 400, utf8("data"))) {
            node.start();
            check(node.waitForInitialCreate(WAIT_SECONDS, TimeUnit.SECONDS), "not created");
            eventually("the node whose TTL is renewed", () ->
                    clients.get(1).checkExists().forPath(path + "/touch") != null);
        }
    }

    private void groupMember(String path) throws Exception {
        List<GroupMember> members = new ArrayList<>();
        for (int number = 0; number < clients.size(); number++) {
            members.add(new GroupMember(clients.get(number), path, "member-" + number, utf8("" + number)));
            members.get(number).start();
        }
        for (GroupMember each : members) {
            eventually("all members", () -> each.getCurrentMembers().size() == clients.size());
        }
        members.get(0).close();
        eventually("one member fewer", () -> members.get(1).getCurrentMembers().size() == clients.size() - 1);
        members.subList(1, members.size()).forEach(GroupMember::close);
    }

    private void persistentWatcher(String path) throws Exception {
        clients.get(0).create().creatingParentsIfNeeded().forPath(path);
        clients.get(1).sync().forPath(path);
        List<String> events = Collections.synchronizedList(new ArrayList<>());
        try (var watcher = new PersistentWatcher(clients.get(1), path, true)) {
            var set = new CountDownLatch(1);
            watcher.getResetListenable().addListener(set::countDown);
            watcher.getListenable().addListener(event -> {
                if (event.getType() != EventType.None) {
                    events.add(event.getType() + event.getPath().substring(path.length()));
                }
            });
            watcher.start();
            check(set.await(WAIT_SECONDS, TimeUnit.SECONDS), "not set");
            clients.get(0).create().forPath(path + "/a");
            clients.get(0).setData().forPath(path + "/a", utf8("x"));
            clients.get(0).create().forPath(path + "/a/b");
            clients.get(0).delete().forPath(path + "/a/b");
            clients.get(0).delete().forPath(path + "/a");
            eventually("five events", () -> events.size() == 5);
            check(
                    events.equals(List.of(
                            "NodeCreated/a",
                            "NodeDataChanged/a",
                            "NodeCreated/a/b",
                            "NodeDeleted/a/b",
                            "NodeDeleted/a")),
                    "the events " + events);
        }
    }

    private void transactions(String path) throws Exception {
        CuratorFramework client = clients.get(0);
        client.create().creatingParentsIfNeeded().forPath(path);
        CuratorOp create = client.transactionOp()
                .create()
                .withMode(CreateMode.PERSISTENT_SEQUENTIAL)
                .forPath(path + "/s-");
        CuratorOp set = client.transactionOp().setData().withVersion(0).forPath(path, utf8("new"));
        CuratorOp check = client.transactionOp().check().withVersion(1).forPath(path);
        List<CuratorTransactionResult> results = client.transaction().forOperations(create, set, check);
        String created = results.get(0).getResultPath();
        check(created.equals(path + "/s-0000000000"), "created " + created);
        int version = results.get(1).getResultStat().getVersion();
        check(version == 1, "version " + version);
        CuratorOp wrong = client.transactionOp().delete().withVersion(9).forPath(path);
        try {
            client.transaction().forOperations(create, wrong);
            throw new IllegalStateException("a transaction with a wrong version was done");
        } catch (KeeperException.BadVersionException | KeeperException.NotEmptyException error) {
            check(error.getResults().size() == 2, "results of " + error.getResults().size());
        }
        clients.get(1).sync().forPath(path);
        check(clients.get(1).getChildren().forPath(path).size() == 1, "the refused transaction made a node");
    }

    private void containers(String path) throws Exception {
        clients.get(0).createContainers(path + "/below");
        clients.get(1).sync().forPath(path);
        Stat stat = clients.get(1).checkExists().forPath(path + "/below");
        check(stat != null && stat.getEphemeralOwner() == 0, "no container: " + stat);
    }

    // ---- helpers ----

    private interface Work {
        void with(CuratorFramework client) throws Exception;
    }

    private void together(Work work) throws Exception {
        List<Future<Void>> running = new ArrayList<>();
        for (CuratorFramework client : clients) {
            running.add(threads.submit((Callable<Void>) () -> {
                work.with(client);
                return null;
            }));
        }
        for (Future<Void> each : running) {
            each.get(WAIT_SECONDS, TimeUnit.SECONDS);
        }
    }

    private static void eventually(String what, Condition condition) throws Exception {
        long end = System.nanoTime() + Duration.ofSeconds(WAIT_SECONDS).toNanos();
        while (!condition.holds()) {
            check(System.nanoTime() < end, "never: " + what);
            Thread.sleep(5);
        }
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    private static byte[] utf8(String text) {
        return text.getBytes(UTF_8);
    }

    private static String text(ChildData data) {
        return new String(data.getData(), UTF_8);
    }

    private static String name(ChildData data) {
        return data.getPath().substring(data.getPath().lastIndexOf('/') + 1);
    }
}
