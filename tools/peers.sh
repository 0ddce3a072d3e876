#!/usr/bin/env bash
# Brings the peers that the compat tests and benchmarks talk to: Apache Kafka's jars through Maven, kcat from Debian.
# What cannot be had here is left out with a line that says so; the tests then skip it by name (and fail under CI=true).
set -u
cd "$(dirname "$0")/.."
kafka=build/peers/kafka-3.9.1
if [ ! -f "$kafka/.complete" ]; then
    if command -v mvn >/dev/null && command -v java >/dev/null; then
        echo "peers: Apache Kafka 3.9.1 through Maven"
        if mvn -q -B -f tests/compat/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/$kafka"; then
            touch "$kafka/.complete"
        else
            echo "peers: Maven could not bring Apache Kafka 3.9.1" >&2
        fi
    else
        echo "peers: no Apache Kafka, it needs java and mvn (sudo apt-get install openjdk-17-jre-headless maven)" >&2
    fi
fi
# With it Kafka's cleaner says how long it took; the tests' own logger is silent.
logger=build/peers/slf4j-simple-1.7.36.jar
if [ ! -f "$logger" ] && command -v mvn >/dev/null; then
    mvn -q -B dependency:copy -Dartifact=org.slf4j:slf4j-simple:1.7.36 -DoutputDirectory="$PWD/build/peers" ||
        echo "peers: Maven could not bring slf4j-simple" >&2
fi
if ! command -v kcat >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "peers: kcat from Debian"
        (apt-get update && apt-get install -y --no-install-recommends kcat) >/dev/null 2>&1 || echo "peers: apt-get could not install kcat" >&2
    else
        echo "peers: no kcat (sudo apt-get install kcat)" >&2
    fi
fi
exit 0
