#!/usr/bin/env bash
# Brings the peers that the compat tests and benchmarks talk to: Apache's jars and Curator's through Maven, kcat from Debian, and what
# the tests of faults use.
# What cannot be had here is left out with a line that says so; the tests then skip it by name (and fail under CI=true).
set -u
cd "$(dirname "$0")/.."

# jars NAME DIRECTORY: what the pom.xml in tests/compat/DIRECTORY depends on, into build/peers/NAME
jars() {
    local into="$PWD/build/peers/$1"
    if [ -f "$into/.complete" ]; then
        return
    fi
    if ! command -v mvn >/dev/null || ! command -v java >/dev/null; then
        echo "peers: no $1, it needs java and mvn (sudo apt-get install openjdk-17-jre-headless maven)" >&2
        return
    fi
    echo "peers: $1 through Maven"
    if mvn -q -B -f "tests/compat/$2/pom.xml" dependency:copy-dependencies -DoutputDirectory="$into"; then
        touch "$into/.complete"
    else
        echo "peers: Maven could not bring $1" >&2
    fi
}

jars kafka-3.9.1 kafka
jars kafka-logging-1.7.36 kafka-logging
jars kafka-4.1.0 kafka-4.1
jars kafka-clients-4.2.0 kafka-clients-4.2
jars kafka-clients-0.10.2.2 kafka-clients-0.10
jars kafka-clients-0.9.0.1 kafka-clients-0.9
jars zookeeper-3.9.4 zookeeper
jars zookeeper-3.9.4-ports zookeeper-ports
jars curator-5.9.0 curator
jars kafka-streams-3.9.1 streams
jars spark-kafka-4.2.0 spark-kafka

# debian COMMAND PACKAGE
debian() {
    if command -v "$1" >/dev/null; then
        return
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "peers: $1 from Debian"
        (apt-get update && apt-get install -y --no-install-recommends "$2") >/dev/null 2>&1 || echo "peers: apt-get could not install $2" >&2
    else
        echo "peers: no $1 (sudo apt-get install $2)" >&2
    fi
}

debian kcat kcat
debian ip iproute2
debian strace strace
exit 0
