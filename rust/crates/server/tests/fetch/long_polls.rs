//! Fetch requests that wait for records.

use logcore_server::PartitionSpec;

use super::common::{Fetch, TestServer, batch, fetched, int, partition, produce, records};
use super::write;

// If this failed, consumers would poll in a busy loop or see records late.
#[test]
fn a_long_poll_is_woken_by_the_append() {
    let server = TestServer::start(&[]);
    let mut consumer = server.client();
    let mut producer = server.client();
    let size = write(&mut producer, 1, b"first").len() as i32;
    let poll = Fetch {
        wait_ms: 600_000,
        bytes_min: size + 1,
        partitions: vec![0, 1],
        ..Fetch::default()
    };
    consumer.send(1, poll.version, poll.message());
    // The server may read the poll before or after this append. It answers after both.
    write(&mut producer, 0, b"second");
    let (_, response) = consumer.receive(1, poll.version);
    assert!(
        fetched(&response)
            .iter()
            .all(|part| records(part).len() as i32 >= size)
    );
}

// If this failed, an idle consumer would wait too long, or a stop would wait for all long polls.
#[test]
fn a_long_poll_ends_at_its_timeout_and_when_the_server_stops() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let response = Fetch {
        wait_ms: 20,
        ..Fetch::default()
    }
    .call(&mut client);
    assert!(records(&fetched(&response)[0]).is_empty());
    let poll = Fetch {
        wait_ms: 600_000,
        ..Fetch::default()
    };
    client.send(1, poll.version, poll.message());
    server.wait_for_requests(1, 2);
    server.server.stop(std::time::Duration::from_secs(20)).unwrap();
    let (_, response) = client.receive(1, poll.version);
    assert_eq!(int(&fetched(&response)[0], "error_code"), 0);
    assert!(client.is_closed());
}

// If this failed, a consumer in an old segment would wait for more bytes than the segment has.
#[test]
fn a_long_poll_does_not_wait_in_an_older_segment() {
    let server = TestServer::start(&[("log.segment.bytes", "1000")]);
    let mut client = server.client();
    for _ in 0..3 {
        write(&mut client, 0, &[1; 700]);
    }
    let ask = |offset, wait_ms| Fetch {
        offset,
        wait_ms,
        bytes_min: 1 << 20,
        ..Fetch::default()
    };
    let response = ask(0, 600_000).call(&mut client);
    assert!(!records(&fetched(&response)[0]).is_empty());
    // In the last segment it waits.
    client.send(1, 12, ask(2, 600_000).message());
    server.wait_for_gauge("delayed_fetches", 1);
}

// If this failed, a consumer that waits in a log of an older Kafka would not wake up after its topic got an
// id. Or the id would still name the topic after its deletion.
#[test]
fn a_topic_without_an_id_gets_one() {
    let server = TestServer::start(&[]);
    let with_id = |topic_id| PartitionSpec {
        topic_id,
        ..partition("old", 0)
    };
    server.server.create_partition(&with_id([0; 16])).unwrap();
    let mut client = server.client();
    let poll = Fetch {
        topic: "old",
        wait_ms: 600_000,
        ..Fetch::default()
    };
    client.send(1, poll.version, poll.message());
    server.wait_for_gauge("delayed_fetches", 1);
    server.server.create_partition(&with_id([8; 16])).unwrap();
    let stored = produce("old", 1, &[(0, &batch(&[b"a"]))]);
    server.client().call(0, 9, stored);
    let (_, body) = client.receive(1, poll.version);
    assert_eq!(int(&fetched(&body)[0], "high_watermark"), 1);
    assert!(server.server.create_partition(&with_id([9; 16])).is_err());
    server.server.delete_topic("old").unwrap();
    let by_id = Fetch {
        version: 13,
        topic: "old",
        ..Fetch::default()
    };
    let body = by_id.call(&mut client);
    let unknown_topic_id = 100;
    assert_eq!(int(&fetched(&body)[0], "error_code"), unknown_topic_id);
}

// If this failed, a client that closed its sending side would not get its response.
#[test]
fn a_half_closed_client_gets_its_response() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let poll = Fetch {
        wait_ms: 200,
        ..Fetch::default()
    };
    client.send(1, poll.version, poll.message());
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    let (_, response) = client.receive(1, poll.version);
    assert_eq!(int(&fetched(&response)[0], "error_code"), 0);
    assert!(client.is_closed());
}
