"""zkCli's shell (ZooKeeper 3.9's ZooKeeperMain) over kazoo: `session` asks the server, `watches` knows who is told of what,
`arguments` takes a line apart, `commands` and `quotas` and `reconfig` are what can be said, `shell` says it, `terminal` reads it."""
