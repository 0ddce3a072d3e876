"""Every setting of a Kafka 3.9 broker and topic, with or without effect in this broker: the facts, without
prose.

Sources: `KafkaConfig.configDef`, `DynamicBrokerConfig.AllDynamicConfigs`, `LogConfig.configDefCopy` and
`ServerTopicConfigSynonyms` of kafka_2.13-3.9.1. A line has, separated by spaces:

- the name;
- the type;
- the default: `~` none, `""` the empty text;
- the valid values: `-` any, `a..b` a range, `a|b` a choice, `version` a version of Kafka;
- flags: `d` it can change while the broker runs, `i` it is internal to Kafka and not described, `-` none;
- for a topic setting, the broker settings that its default comes from, or `-`. The first is the one that
  Kafka names as the synonym; `*N` converts its unit to the topic setting's.

`BROKER_NO_EFFECT` and `TOPIC_NO_EFFECT` are the settings that are checked and described but change nothing
here. The start names those that are set in a warning (`BrokerConfig.warnings`).

Seven settings have another default than in Kafka: see *Settings* in docs/departures/broker.md. One has another
meaning: `queued.max.request.bytes` is the memory of all requests' frames. Decoded requests may take as much
again (at least 16 MiB), three quarters of it for the handlers in Python. A single request that needs more
closes its connection. Group members may take a quarter as much again.
"""

BROKER = """
advertised.listeners string ~ - d
auto.create.topics.enable boolean true - -
auto.leader.rebalance.enable boolean true - -
broker.id int -1 - -
broker.id.generation.enable boolean true - -
broker.rack string ~ - -
compression.gzip.level int -1 -1|1..9 d
compression.type string producer uncompressed|zstd|lz4|snappy|gzip|producer d
compression.zstd.level int 3 -131072..22 d
connections.max.idle.ms long 600000 - -
controller.quota.window.num int 11 1.. -
controller.quota.window.size.seconds int 1 1.. -
default.replication.factor int 1 - -
delete.topic.enable boolean true - -
fetch.max.bytes int 57671680 1024.. -
group.consumer.assignors list org.apache.kafka.coordinator.group.assignor.UniformAssignor,org.apache.kafka.coordinator.group.assignor.RangeAssignor - -
group.consumer.heartbeat.interval.ms int 5000 1.. -
group.consumer.max.heartbeat.interval.ms int 15000 1.. -
group.consumer.max.session.timeout.ms int 60000 1.. -
group.consumer.max.size int 2147483647 1.. -
group.consumer.migration.policy string disabled - i
group.consumer.min.heartbeat.interval.ms int 5000 1.. -
group.consumer.min.session.timeout.ms int 45000 1.. -
group.consumer.session.timeout.ms int 45000 1.. -
group.coordinator.rebalance.protocols list classic consumer|classic|share|unknown -
group.initial.rebalance.delay.ms int 3000 - -
group.max.session.timeout.ms int 1800000 - -
group.max.size int 2147483647 1.. -
group.min.session.timeout.ms int 6000 - -
inter.broker.listener.name string ~ - -
leader.imbalance.check.interval.seconds long 300 1.. -
leader.imbalance.per.broker.percentage int 10 - -
listener.security.protocol.map string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT - d
listeners string PLAINTEXT://:9092 - d
log.cleaner.backoff.ms long 15000 0.. d
log.cleaner.dedupe.buffer.size long 134217728 - d
log.cleaner.delete.retention.ms long 86400000 0.. d
log.cleaner.enable boolean true - -
log.cleaner.io.buffer.load.factor double 0.9 - d
log.cleaner.io.buffer.size int 524288 0.. d
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308 - d
log.cleaner.max.compaction.lag.ms long 9223372036854775807 1.. d
log.cleaner.min.cleanable.ratio double 0.5 0..1 d
log.cleaner.min.compaction.lag.ms long 0 0.. d
log.cleaner.threads int 1 0.. d
log.cleanup.policy list delete compact|delete d
log.dir string /tmp/kafka-logs - -
log.dirs string ~ - -
log.flush.interval.messages long 9223372036854775807 1.. d
log.flush.interval.ms long ~ - d
log.flush.offset.checkpoint.interval.ms int 60000 0.. -
log.flush.scheduler.interval.ms long 9223372036854775807 - -
log.index.interval.bytes int 4096 0.. d
log.index.size.max.bytes int 10485760 4.. d
log.message.downconversion.enable boolean true - d
log.message.timestamp.after.max.ms long 9223372036854775807 0.. d
log.message.timestamp.before.max.ms long 9223372036854775807 0.. d
log.message.timestamp.difference.max.ms long 9223372036854775807 0.. d
log.message.timestamp.type string CreateTime CreateTime|LogAppendTime d
log.retention.bytes long -1 - d
log.retention.check.interval.ms long 300000 1.. -
log.retention.hours int 168 - -
log.retention.minutes int ~ - -
log.retention.ms long ~ - d
log.roll.hours int 168 1.. -
log.roll.jitter.hours int 0 0.. -
log.roll.jitter.ms long ~ - d
log.roll.ms long ~ - d
log.segment.bytes int 1073741824 14.. d
log.segment.delete.delay.ms long 60000 0.. d
max.connection.creation.rate int 2147483647 0.. d
max.connections int 2147483647 0.. d
max.connections.per.ip int 2147483647 0.. d
max.connections.per.ip.overrides string "" - d
max.incremental.fetch.session.cache.slots int 1000 0.. -
message.max.bytes int 1048588 0.. d
min.insync.replicas int 1 1.. d
node.id int -1 - -
num.network.threads int 3 1.. d
num.partitions int 1 1.. -
num.recovery.threads.per.data.dir int 1 1.. d
num.replica.fetchers int 1 - d
offset.metadata.max.bytes int 4096 - -
offsets.retention.check.interval.ms long 600000 1.. -
offsets.retention.minutes int 10080 1.. -
offsets.topic.num.partitions int 50 1.. -
offsets.topic.replication.factor short 3 1.. -
offsets.topic.segment.bytes int 104857600 1.. -
producer.id.expiration.check.interval.ms int 600000 1.. i
producer.id.expiration.ms int 86400000 1.. d
queued.max.request.bytes long -1 - -
queued.max.requests int 500 1.. -
quota.window.num int 11 1.. -
quota.window.size.seconds int 1 1.. -
replica.fetch.backoff.ms int 1000 0.. -
replica.fetch.max.bytes int 1048576 0.. -
replica.fetch.min.bytes int 1 - -
replica.fetch.response.max.bytes int 10485760 0.. -
replica.fetch.wait.max.ms int 500 - -
replica.lag.time.max.ms long 30000 - -
replica.selector.class string ~ - -
replica.socket.timeout.ms int 30000 - -
request.timeout.ms int 30000 - -
reserved.broker.max.id int 1000 0.. -
security.inter.broker.protocol string PLAINTEXT PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL -
socket.listen.backlog.size int 50 1.. -
socket.receive.buffer.bytes int 102400 - -
socket.request.max.bytes int 104857600 1.. -
socket.send.buffer.bytes int 102400 - -
ssl.cipher.suites list "" - d
ssl.client.auth string none required|requested|none d
ssl.enabled.protocols list TLSv1.2,TLSv1.3 - d
ssl.engine.factory.class class ~ - d
ssl.key.password password ~ - d
ssl.keystore.certificate.chain password ~ - d
ssl.keystore.key password ~ - d
ssl.keystore.location string ~ - d
ssl.keystore.password password ~ - d
ssl.keystore.type string JKS - d
ssl.principal.mapping.rules string DEFAULT - -
ssl.protocol string TLSv1.3 - d
ssl.provider string ~ - d
ssl.truststore.certificates password ~ - d
ssl.truststore.location string ~ - d
ssl.truststore.password password ~ - d
ssl.truststore.type string JKS - d
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 1.. -
transaction.max.timeout.ms int 900000 1.. -
transaction.partition.verification.enable boolean true - d
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000 1.. -
transaction.state.log.min.isr int 2 1.. -
transaction.state.log.num.partitions int 50 1.. -
transaction.state.log.replication.factor short 3 1.. -
transaction.state.log.segment.bytes int 104857600 1.. -
transactional.id.expiration.ms int 604800000 1.. -
unclean.leader.election.enable boolean false - d
zookeeper.connect string ~ - -
zookeeper.connection.timeout.ms int ~ - -
zookeeper.session.timeout.ms int 18000 - -
controller.socket.timeout.ms int 30000 - -
controlled.shutdown.enable boolean true - -
controlled.shutdown.max.retries int 3 - -
controlled.shutdown.retry.backoff.ms long 5000 - -
offsets.commit.timeout.ms int 5000 1.. -
alter.log.dirs.replication.quota.window.num int 11 1.. -
alter.log.dirs.replication.quota.window.size.seconds int 1 1.. -
replication.quota.window.num int 11 1.. -
replication.quota.window.size.seconds int 1 1.. -
"""
"""Settings of a broker that have an effect."""

BROKER_NO_EFFECT = """
alter.config.policy.class.name class ~ - -
authorizer.class.name string "" - -
auto.include.jmx.reporter boolean true - -
background.threads int 10 1.. d
broker.heartbeat.interval.ms int 2000 - -
broker.session.timeout.ms int 9000 - -
client.quota.callback.class class ~ - -
compression.lz4.level int 9 1..17 d
connection.failed.authentication.delay.ms int 100 0.. -
connections.max.reauth.ms long 0 - -
control.plane.listener.name string ~ - -
controller.listener.names string ~ - -
controller.quorum.append.linger.ms int 25 - -
controller.quorum.bootstrap.servers list "" - -
controller.quorum.election.backoff.max.ms int 1000 - -
controller.quorum.election.timeout.ms int 1000 - -
controller.quorum.fetch.timeout.ms int 2000 - -
controller.quorum.request.timeout.ms int 2000 - -
controller.quorum.retry.backoff.ms int 20 - -
controller.quorum.voters list "" - -
create.topic.policy.class.name class ~ - -
delegation.token.expiry.check.interval.ms long 3600000 1.. -
delegation.token.expiry.time.ms long 86400000 1.. -
delegation.token.master.key password ~ - -
delegation.token.max.lifetime.ms long 604800000 1.. -
delegation.token.secret.key password ~ - -
delete.records.purgatory.purge.interval.requests int 1 - -
early.start.listeners string ~ - -
eligible.leader.replicas.enable boolean false - -
fetch.purgatory.purge.interval.requests int 1000 - -
group.coordinator.append.linger.ms int 10 0.. -
group.coordinator.new.enable boolean false - i
group.coordinator.threads int 1 1.. -
group.share.delivery.count.limit int 5 2..10 -
group.share.enable boolean false - i
group.share.heartbeat.interval.ms int 5000 1.. -
group.share.max.groups short 10 1..100 -
group.share.max.heartbeat.interval.ms int 15000 1.. -
group.share.max.record.lock.duration.ms int 60000 30000..3600000 -
group.share.max.session.timeout.ms int 60000 1.. -
group.share.max.size short 200 10..1000 -
group.share.min.heartbeat.interval.ms int 5000 1.. -
group.share.min.record.lock.duration.ms int 15000 1000..30000 -
group.share.min.session.timeout.ms int 45000 1.. -
group.share.partition.max.record.locks int 200 100..10000 -
group.share.record.lock.duration.ms int 30000 1000..60000 -
group.share.session.timeout.ms int 45000 1.. -
initial.broker.registration.timeout.ms int 60000 - -
inter.broker.protocol.version string 3.9-IV0 version -
kafka.metrics.polling.interval.secs int 10 1.. -
kafka.metrics.reporters list "" - -
log.dir.failure.timeout.ms long 30000 1.. -
log.flush.start.offset.checkpoint.interval.ms int 60000 0.. -
log.initial.task.delay.ms long 30000 0.. i
log.local.retention.bytes long -2 -2.. d
log.local.retention.ms long -2 -2.. d
log.message.format.version string 3.0-IV1 version -
log.preallocate boolean false - d
max.request.partition.size.limit int 2000 1.. -
metadata.log.dir string ~ - -
metadata.log.max.record.bytes.between.snapshots long 20971520 1.. -
metadata.log.max.snapshot.interval.ms long 3600000 0.. -
metadata.log.segment.bytes int 1073741824 12.. -
metadata.log.segment.min.bytes int 8388608 12.. i
metadata.log.segment.ms long 604800000 - -
metadata.max.idle.interval.ms int 500 0.. -
metadata.max.retention.bytes long 104857600 - -
metadata.max.retention.ms long 604800000 - -
metric.reporters list "" - d
metrics.num.samples int 2 1.. -
metrics.recording.level string INFO - -
metrics.sample.window.ms long 30000 1.. -
num.io.threads int 8 1.. d
num.replica.alter.log.dirs.threads int ~ - -
offsets.commit.required.acks short -1 - -
offsets.load.buffer.size int 5242880 1.. -
offsets.topic.compression.codec int 0 - -
password.encoder.cipher.algorithm string AES/CBC/PKCS5Padding - -
password.encoder.iterations int 4096 1024.. -
password.encoder.key.length int 128 8.. -
password.encoder.keyfactory.algorithm string ~ - -
password.encoder.old.secret password ~ - -
password.encoder.secret password ~ - -
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder - d
process.roles list "" broker|controller -
producer.purgatory.purge.interval.requests int 1000 - -
remote.fetch.max.wait.ms int 500 1.. d
remote.log.index.file.cache.total.size.bytes long 1073741824 1.. d
remote.log.manager.copier.thread.pool.size int -1 - -
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 1.. d
remote.log.manager.copy.quota.window.num int 11 1.. -
remote.log.manager.copy.quota.window.size.seconds int 1 1.. -
remote.log.manager.expiration.thread.pool.size int -1 - -
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 1.. d
remote.log.manager.fetch.quota.window.num int 11 1.. -
remote.log.manager.fetch.quota.window.size.seconds int 1 1.. -
remote.log.manager.task.interval.ms long 30000 1.. -
remote.log.manager.task.retry.backoff.max.ms long 30000 1.. i
remote.log.manager.task.retry.backoff.ms long 500 1.. i
remote.log.manager.task.retry.jitter double 0.2 0..0.5 i
remote.log.manager.thread.pool.size int 10 1.. -
remote.log.metadata.custom.metadata.max.bytes int 128 0.. -
remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager - -
remote.log.metadata.manager.class.path string ~ - -
remote.log.metadata.manager.impl.prefix string rlmm.config. - -
remote.log.metadata.manager.listener.name string ~ - -
remote.log.reader.max.pending.tasks int 100 1.. -
remote.log.reader.threads int 10 1.. -
remote.log.storage.manager.class.name string ~ - -
remote.log.storage.manager.class.path string ~ - -
remote.log.storage.manager.impl.prefix string rsm.config. - -
remote.log.storage.system.enable boolean false - -
replica.high.watermark.checkpoint.interval.ms long 5000 - -
replica.socket.receive.buffer.bytes int 65536 - -
sasl.client.callback.handler.class class ~ - -
sasl.enabled.mechanisms list GSSAPI - d
sasl.jaas.config password ~ - d
sasl.kerberos.kinit.cmd string /usr/bin/kinit - d
sasl.kerberos.min.time.before.relogin long 60000 - d
sasl.kerberos.principal.to.local.rules list DEFAULT - d
sasl.kerberos.service.name string ~ - d
sasl.kerberos.ticket.renew.jitter double 0.05 - d
sasl.kerberos.ticket.renew.window.factor double 0.8 - d
sasl.login.callback.handler.class class ~ - -
sasl.login.class class ~ - -
sasl.login.connect.timeout.ms int ~ - -
sasl.login.read.timeout.ms int ~ - -
sasl.login.refresh.buffer.seconds short 300 - d
sasl.login.refresh.min.period.seconds short 60 - d
sasl.login.refresh.window.factor double 0.8 - d
sasl.login.refresh.window.jitter double 0.05 - d
sasl.login.retry.backoff.max.ms long 10000 - -
sasl.login.retry.backoff.ms long 100 - -
sasl.mechanism.controller.protocol string GSSAPI - -
sasl.mechanism.inter.broker.protocol string GSSAPI - d
sasl.oauthbearer.clock.skew.seconds int 30 - -
sasl.oauthbearer.expected.audience list ~ - -
sasl.oauthbearer.expected.issuer string ~ - -
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 - -
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 - -
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 - -
sasl.oauthbearer.jwks.endpoint.url string ~ - -
sasl.oauthbearer.scope.claim.name string scope - -
sasl.oauthbearer.sub.claim.name string sub - -
sasl.oauthbearer.token.endpoint.url string ~ - -
sasl.server.callback.handler.class class ~ - -
sasl.server.max.receive.size int 524288 - -
security.providers string ~ - -
server.max.startup.time.ms long 9223372036854775807 0.. i
socket.connection.setup.timeout.max.ms long 30000 - -
socket.connection.setup.timeout.ms long 10000 - -
ssl.allow.dn.changes boolean false - -
ssl.allow.san.changes boolean false - -
ssl.endpoint.identification.algorithm string https - d
ssl.keymanager.algorithm string SunX509 - d
ssl.secure.random.implementation string ~ - d
ssl.trustmanager.algorithm string PKIX - d
telemetry.max.bytes int 1048576 1.. -
transaction.state.log.load.buffer.size int 5242880 1.. -
unclean.leader.election.interval.ms long 300000 1.. i
unstable.api.versions.enable boolean false - i
unstable.feature.versions.enable boolean false - i
zookeeper.clientCnxnSocket string ~ - -
zookeeper.max.in.flight.requests int 10 1.. -
zookeeper.metadata.migration.enable boolean false - -
zookeeper.metadata.migration.min.batch.size int 200 1.. i
zookeeper.set.acl boolean false - -
zookeeper.ssl.cipher.suites list ~ - -
zookeeper.ssl.client.enable boolean false - -
zookeeper.ssl.crl.enable boolean false - -
zookeeper.ssl.enabled.protocols list ~ - -
zookeeper.ssl.endpoint.identification.algorithm string HTTPS - -
zookeeper.ssl.keystore.location string ~ - -
zookeeper.ssl.keystore.password password ~ - -
zookeeper.ssl.keystore.type string ~ - -
zookeeper.ssl.ocsp.enable boolean false - -
zookeeper.ssl.protocol string TLSv1.2 - -
zookeeper.ssl.truststore.location string ~ - -
zookeeper.ssl.truststore.password password ~ - -
zookeeper.ssl.truststore.type string ~ - -
"""
"""Settings of a broker that have no effect here."""

RATES = """
replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 0.. d
leader.replication.throttled.rate long 9223372036854775807 0.. d
follower.replication.throttled.rate long 9223372036854775807 0.. d
"""
"""Rates that Kafka takes only from ZooKeeper."""

OWN = """
log.format string text text|json -
logcore.produce.check.compressed boolean true - -
metrics.listener string ~ - -
slow.request.log.ms long 1000 -1.. -
socket.busy.poll.us int 100 0..10000 -
"""
"""Settings of this broker that Kafka does not have."""

TOPIC = """
cleanup.policy list delete compact|delete - log.cleanup.policy
compression.gzip.level int -1 -1|1..9 - compression.gzip.level
compression.type string producer uncompressed|zstd|lz4|snappy|gzip|producer - compression.type
compression.zstd.level int 3 -131072..22 - compression.zstd.level
delete.retention.ms long 86400000 0.. - log.cleaner.delete.retention.ms
file.delete.delay.ms long 60000 0.. - log.segment.delete.delay.ms
flush.messages long 9223372036854775807 1.. - log.flush.interval.messages
flush.ms long 9223372036854775807 0.. - log.flush.interval.ms,log.flush.scheduler.interval.ms
follower.replication.throttled.replicas list "" - - -
index.interval.bytes int 4096 0.. - log.index.interval.bytes
leader.replication.throttled.replicas list "" - - -
max.compaction.lag.ms long 9223372036854775807 1.. - log.cleaner.max.compaction.lag.ms
max.message.bytes int 1048588 0.. - message.max.bytes
message.downconversion.enable boolean true - - log.message.downconversion.enable
message.timestamp.after.max.ms long 9223372036854775807 0.. - log.message.timestamp.after.max.ms
message.timestamp.before.max.ms long 9223372036854775807 0.. - log.message.timestamp.before.max.ms
message.timestamp.difference.max.ms long 9223372036854775807 0.. - log.message.timestamp.difference.max.ms
message.timestamp.type string CreateTime CreateTime|LogAppendTime - log.message.timestamp.type
min.cleanable.dirty.ratio double 0.5 0..1 - log.cleaner.min.cleanable.ratio
min.compaction.lag.ms long 0 0.. - log.cleaner.min.compaction.lag.ms
min.insync.replicas int 1 1.. - min.insync.replicas
retention.bytes long -1 - - log.retention.bytes
retention.ms long 604800000 -1.. - log.retention.ms,log.retention.minutes*60000,log.retention.hours*3600000
segment.bytes int 1073741824 14.. - log.segment.bytes
segment.index.bytes int 10485760 4.. - log.index.size.max.bytes
segment.jitter.ms long 0 0.. - log.roll.jitter.ms,log.roll.jitter.hours*3600000
segment.ms long 604800000 1.. - log.roll.ms,log.roll.hours*3600000
"""
"""Settings of a topic that have an effect."""

TOPIC_NO_EFFECT = """
compression.lz4.level int 9 1..17 - compression.lz4.level
local.retention.bytes long -2 -2.. - log.local.retention.bytes
local.retention.ms long -2 -2.. - log.local.retention.ms
message.format.version string 3.0-IV1 version - log.message.format.version
preallocate boolean false - - log.preallocate
remote.log.copy.disable boolean false - - -
remote.log.delete.on.disable boolean false - - -
remote.storage.enable boolean false - - -
unclean.leader.election.enable boolean false - - unclean.leader.election.enable
"""
"""Settings of a topic that have no effect here."""
