//! Fetch sessions (KIP-227).

use logcore_protocol::Value;

use super::common::{self, Client, Fetch, TestServer, fetched, int};
use super::write;

// If this failed, consumers with sessions would miss records, or get every partition every time.
#[test]
fn sessions_send_what_changed() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let fetch = |session: (i32, i32), partitions: Vec<i32>, client: &mut Client| {
        let response = Fetch {
            session,
            partitions,
            offset: 0,
            ..Fetch::default()
        }
        .call(client);
        let root = response.as_struct().unwrap().clone();
        let indexes: Vec<_> = fetched(&response)
            .iter()
            .map(|part| int(part, "partition_index"))
            .collect();
        (int(&root, "session_id") as i32, int(&root, "error_code"), indexes)
    };
    let (id, _, indexes) = fetch((0, 0), vec![0, 1], &mut client);
    assert!(id > 0);
    assert_eq!(indexes, [0, 1]);
    assert_eq!(fetch((id, 1), vec![], &mut client), (id, 0, vec![]));
    write(&mut client, 1, b"new");
    assert_eq!(fetch((id, 2), vec![], &mut client), (id, 0, vec![1]));
    assert_eq!(fetch((id, 2), vec![], &mut client), (0, 71, vec![]));
    assert_eq!(fetch((id ^ 1, 1), vec![], &mut client), (0, 70, vec![]));
    assert_eq!(fetch((id, -1), vec![0], &mut client), (0, 0, vec![0]));
    assert_eq!(fetch((id, 3), vec![], &mut client), (0, 70, vec![]));
}

// If this failed, a consumer would read a new topic of the same name with its offsets in the old one.
#[test]
fn a_session_does_not_read_a_new_topic_of_the_same_name() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let ask = |session| Fetch {
        version: 17,
        session,
        ..Fetch::default()
    };
    let response = ask((0, 0)).call(&mut client);
    let id = match response.get("session_id") {
        Some(Value::I32(id)) => *id,
        other => panic!("{other:?}"),
    };
    let mut next = |epoch| {
        let bare = Fetch {
            partitions: Vec::new(),
            ..ask((id, epoch))
        };
        let response = bare.call(&mut client);
        int(&fetched(&response)[0], "error_code")
    };
    server.server.delete_topic("t").unwrap();
    assert_eq!(next(1), 3);
    let mut recreated = common::partition("t", 0);
    recreated.topic_id = [5; 16];
    server.server.create_partition(&recreated).unwrap();
    assert_eq!(next(2), 103);
}
