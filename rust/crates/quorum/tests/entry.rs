//! The bytes of an entry: entries are read back as they were written, and no other bytes are read as an
//! entry.
#![allow(clippy::unwrap_used)] // a test may panic

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use logcore_quorum::Malformed;
use logcore_quorum::commands::{Command, Commands};
use logcore_quorum::raft::entry::{decode, encode};
use logcore_quorum::raft::types::{Entry, Membership, Payload, log_id};
use logcore_quorum::servers::{Address, Server};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

fn address() -> impl Strategy<Value = Address> {
    ("[a-z0-9.:-]{0,40}", any::<u16>()).prop_map(|(host, port)| Address { host, port })
}

fn server() -> impl Strategy<Value = Server> {
    let addresses = || vec(address(), 0..3);
    let client = option::of(address());
    (any::<u16>(), addresses(), addresses(), client, any::<bool>()).prop_map(
        |(id, quorum, election, client, observer)| Server {
            id,
            quorum,
            election,
            client,
            observer,
        },
    )
}

fn membership() -> impl Strategy<Value = Membership> {
    (
        btree_map(any::<u64>(), server(), 1..6),
        any::<u8>(),
        any::<bool>(),
    )
        .prop_map(|(servers, voters, joint)| {
            let ids: Vec<u64> = servers.keys().copied().collect();
            let count = 1 + voters as usize % ids.len();
            let mut configs = vec![BTreeSet::from_iter(ids[..count].iter().copied())];
            if joint {
                configs.push(BTreeSet::from_iter(ids[count - 1..].iter().copied()));
            }
            Membership::new(configs, servers).unwrap()
        })
}

fn commands() -> impl Strategy<Value = Commands> {
    let command =
        (any::<u64>(), any::<u64>(), vec(any::<u8>(), 0..300)).prop_map(|(member, ticket, body)| Command {
            member,
            ticket,
            body: body.into(),
        });
    (any::<i64>(), vec(command, 0..20)).prop_map(|(time, commands)| Commands::new(time, &commands))
}

fn entry() -> impl Strategy<Value = Entry> {
    let payload = prop_oneof![
        Just(Payload::Blank),
        commands().prop_map(Payload::Normal),
        membership().prop_map(Payload::Membership),
    ];
    (any::<u64>(), any::<u64>(), payload).prop_map(|(term, index, payload)| Entry {
        log_id: log_id(term, index),
        payload,
    })
}

fn bytes_of(entry: &Entry) -> Bytes {
    let mut bytes = Vec::new();
    encode(entry, &mut bytes);
    bytes.into()
}

proptest! {
    /// If this failed, a member would apply other commands than the others, or not start.
    #[test]
    fn an_entry_is_read_back(entry in entry()) {
        prop_assert_eq!(decode(bytes_of(&entry)).unwrap(), entry);
    }

    /// If this failed, a torn or padded entry would be applied.
    #[test]
    fn a_cut_or_padded_entry_is_refused(entry in entry(), cut in any::<prop::sample::Index>()) {
        let bytes = bytes_of(&entry);
        prop_assert!(decode(bytes.slice(..cut.index(bytes.len()))).is_err());
        let mut longer = bytes.to_vec();
        longer.push(0);
        prop_assert!(decode(longer.into()).is_err());
    }

    /// If this failed, a peer's bytes could crash a member.
    #[test]
    fn any_bytes_are_an_entry_or_an_error(mut bytes in vec(any::<u8>(), 0..400), kind in 0u8..4) {
        // Most bytes would fail at the version.
        if let [version, second, ..] = &mut bytes[..] {
            (*version, *second) = (1, kind);
        }
        if let Ok(entry) = decode(bytes.into()) {
            prop_assert_eq!(decode(bytes_of(&entry)).unwrap(), entry);
        }
    }

    /// If this failed, a client's writes would be applied out of order.
    #[test]
    fn commands_are_read_back_in_order(time in any::<i64>(), bodies in vec(vec(any::<u8>(), 0..50), 0..20)) {
        let command = |(ticket, body): (usize, Vec<u8>)| Command {
            member: 3 << 48,
            ticket: ticket as u64,
            body: body.into(),
        };
        let expected: Vec<Command> = bodies.into_iter().enumerate().map(command).collect();
        let commands = Commands::new(time, &expected);
        prop_assert_eq!(commands.time_ms(), time);
        prop_assert_eq!(commands.iter().collect::<Vec<_>>(), expected);
        let parsed = Commands::parse(commands.as_bytes().clone()).unwrap();
        prop_assert_eq!(parsed, commands);
    }
}

/// If this failed, this version could not read the log of an earlier one.
#[test]
fn the_bytes_stay_the_same() {
    let command = Command {
        member: 0x0102 << 48,
        ticket: 9,
        body: Bytes::from_static(b"set"),
    };
    let entry = Entry {
        log_id: log_id(5, 258),
        payload: Payload::Normal(Commands::new(1_000, &[command])),
    };
    let mut expected = vec![1, 1];
    expected.extend([0, 0, 0, 0, 0, 0, 0, 5]);
    expected.extend([0, 0, 0, 0, 0, 0, 1, 2]);
    expected.extend([0, 0, 0, 0, 0, 0, 3, 232]);
    expected.extend([0, 0, 0, 1]);
    expected.extend([1, 2, 0, 0, 0, 0, 0, 0]);
    expected.extend([0, 0, 0, 0, 0, 0, 0, 9]);
    expected.extend([0, 0, 0, 3]);
    expected.extend(b"set");
    assert_eq!(bytes_of(&entry), expected);
}

/// If this failed, a few bytes could make a member allocate gigabytes.
#[test]
fn a_count_beyond_the_bytes_is_refused() {
    // 2³² - 1 commands, and 65,535 servers, without any bytes for them.
    let mut commands = vec![1, 1];
    commands.extend([0; 16 + 8]);
    commands.extend([255; 4]);
    assert!(matches!(decode(commands.into()), Err(Malformed::CutOff(_))));
    let mut servers = vec![1, 2];
    servers.extend([0; 16 + 1]);
    servers.extend([255; 2]);
    assert!(matches!(decode(servers.into()), Err(Malformed::CutOff(_))));
}

/// If this failed, a membership could name voters that nobody can reach.
#[test]
fn a_voter_without_a_server_is_refused() {
    let mut bytes = vec![1, 2];
    bytes.extend([0; 16]);
    bytes.extend([1, 0, 1]);
    bytes.extend(7u64.to_be_bytes());
    bytes.extend([0, 0]);
    let refused = decode(bytes.into()).unwrap_err();
    assert!(matches!(refused, Malformed::Invalid(_)), "{refused}");
    let known = BTreeMap::from([(7, Server::default())]);
    assert!(Membership::new(vec![BTreeSet::from([7])], known).is_ok());
}
