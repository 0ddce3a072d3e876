"""Settings that change while the broker runs: of topics, brokers and loggers, and the quotas of clients.

They live in Kafka 3.9's znodes below /config, beside whatever an Apache broker or kafka-configs.sh writes there.
`live` is the broker's configuration as it is now; `alteration`, `broker_rules` and `quotas` decide (pure),
`description` says where a value comes from (pure); `store` reads and writes the znodes, `driver` watches them and
applies what changed; `loggers` are Python's. Only the broker's composition root and its handlers use this room.
"""
