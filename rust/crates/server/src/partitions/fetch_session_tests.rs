use super::*;

fn wanted(topic: &str, offset: i64) -> Wanted {
    Wanted {
        topic: TopicRef::Name(topic.into()),
        name: None,
        index: 0,
        offset,
        current_leader_epoch: -1,
        last_fetched_epoch: -1,
        log_start_offset: -1,
        bytes_max: 1,
    }
}

fn request(id: i32, epoch: i32, wanted: Vec<Wanted>) -> SessionRequest {
    SessionRequest {
        id,
        epoch,
        uses_topic_ids: false,
        wanted,
        forgotten: Vec::new(),
    }
}

fn quiet(high_watermark: i64) -> PartitionData<'static> {
    PartitionData {
        topic: None,
        high_watermark,
        log_start_offset: 0,
        is_news: false,
        is_error: false,
        is_unknown: false,
        has_records: false,
    }
}

fn records(high_watermark: i64) -> PartitionData<'static> {
    PartitionData {
        is_news: true,
        has_records: true,
        ..quiet(high_watermark)
    }
}

fn topics(context: &Context) -> Vec<String> {
    let names = context.wanted().iter().map(|wanted| match &wanted.topic {
        TopicRef::Name(name) => name.to_string(),
        TopicRef::Id(id) => format!("{id:?}"),
    });
    names.collect()
}

fn opened(sessions: &FetchSessions, names: &[&str]) -> i32 {
    let partitions: Vec<_> = names.iter().map(|name| wanted(name, 0)).collect();
    let data = vec![quiet(5); partitions.len()];
    let context = sessions.begin(request(0, 0, partitions)).unwrap();
    sessions.finish(&context, false, false, &data).unwrap().0
}

// If this failed, a consumer would miss partitions, or get partitions that did not change.
#[test]
fn an_incremental_response_has_the_changes_only() {
    let sessions = FetchSessions::new(10);
    let id = opened(&sessions, &["a", "b", "c"]);
    assert!(id > 0);

    let context = sessions.begin(request(id, 1, vec![wanted("b", 9)])).unwrap();
    assert_eq!(topics(&context), ["a", "b", "c"]);
    assert_eq!(context.wanted()[1].offset, 9);
    let (same, included) = sessions
        .finish(&context, false, false, &[records(5), quiet(5), quiet(6)])
        .unwrap();
    assert_eq!((same, included), (id, vec![true, false, true]));

    // The partition with records moved to the end. Data that was sent is not sent again.
    let mut next = request(id, 2, vec![wanted("d", 0)]);
    next.forgotten.push((TopicRef::Name("b".into()), 0));
    let context = sessions.begin(next).unwrap();
    assert_eq!(topics(&context), ["c", "a", "d"]);
    let (_, included) = sessions
        .finish(&context, false, false, &[quiet(6), quiet(5), quiet(0)])
        .unwrap();
    assert_eq!(included, [false, false, true]);
}

// If this failed, a consumer would never learn that an error has ended.
#[test]
fn the_end_of_an_error_is_reported() {
    let sessions = FetchSessions::new(10);
    let id = opened(&sessions, &["a"]);
    let error = PartitionData {
        is_news: true,
        is_error: true,
        ..quiet(-1)
    };
    for (epoch, data, expected) in [(1, error, true), (2, quiet(5), true), (3, quiet(5), false)] {
        let context = sessions.begin(request(id, epoch, vec![])).unwrap();
        let (_, included) = sessions.finish(&context, false, false, &[data]).unwrap();
        assert_eq!(included, [expected], "epoch {epoch}");
    }
}

// If this failed, a repeated, foreign or stale request would be answered from another client's session.
#[test]
fn wrong_sessions_are_refused() {
    let sessions = FetchSessions::new(10);
    let id = opened(&sessions, &["a"]);
    let refused = |request| sessions.begin(request).unwrap_err();
    assert_eq!(
        refused(request(id ^ 1, 1, vec![])),
        ErrorCode::FETCH_SESSION_ID_NOT_FOUND
    );
    assert_eq!(
        refused(request(id, 2, vec![])),
        ErrorCode::INVALID_FETCH_SESSION_EPOCH
    );
    let mut with_ids = request(id, 1, vec![]);
    with_ids.uses_topic_ids = true;
    assert_eq!(refused(with_ids), ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR);

    let first = sessions.begin(request(id, 1, vec![])).unwrap();
    let second = sessions.begin(request(id, 2, vec![])).unwrap();
    assert_eq!(
        sessions.finish(&first, false, false, &[quiet(5)]),
        Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH)
    );
    assert!(sessions.finish(&second, false, false, &[quiet(5)]).is_ok());
    sessions
        .begin(request(id, FINAL_EPOCH, vec![wanted("a", 0)]))
        .unwrap();
    assert_eq!(sessions.len(), 0);
}

// If this failed, clients that come and go would fill the broker's memory, or evict the sessions of busy
// ones.
#[test]
fn a_full_cache_gives_no_session() {
    let sessions = FetchSessions::new(2);
    assert!(opened(&sessions, &["a"]) > 0);
    assert!(opened(&sessions, &["a"]) > 0);
    assert_eq!(opened(&sessions, &["a", "b", "c"]), NO_SESSION);
    assert_eq!(sessions.len(), 2);
    for session in sessions.sessions.lock().values_mut() {
        session.created -= 2 * STALE_AFTER;
    }
    assert!(opened(&sessions, &["a", "b", "c"]) > 0);
    assert_eq!(opened(&sessions, &["a"]), NO_SESSION);
    assert_eq!(FetchSessions::new(0).len(), 0);
    assert_eq!(opened(&FetchSessions::new(0), &["a"]), NO_SESSION);
}

// If this failed, consumers would evict the sessions of brokers, or brokers would get none while consumers
// fetch.
#[test]
fn a_followers_session_is_worth_more_than_a_consumers() {
    let sessions = FetchSessions::new(1);
    let ask = |is_follower: bool, names: &[&str]| {
        let partitions: Vec<_> = names.iter().map(|name| wanted(name, 0)).collect();
        let data = vec![quiet(5); partitions.len()];
        let context = sessions.begin(request(0, 0, partitions)).unwrap();
        sessions.finish(&context, false, is_follower, &data).unwrap().0
    };
    let consumer = ask(false, &["a", "b"]);
    assert_ne!(consumer, NO_SESSION);
    assert_eq!(ask(false, &["a", "b", "c"]), NO_SESSION, "the first is young");
    let follower = ask(true, &["a"]);
    assert_ne!(follower, NO_SESSION);
    assert!(sessions.begin(request(consumer, 1, vec![])).is_err());
    assert_eq!(
        ask(true, &["a", "b"]),
        NO_SESSION,
        "a young follower's session stays"
    );
    assert_eq!(ask(false, &["a", "b"]), NO_SESSION);
    assert!(sessions.begin(request(follower, 1, vec![])).is_ok());
}

fn many(names: std::ops::Range<usize>) -> Vec<Wanted> {
    let names = names.map(|number| number.to_string());
    names.map(|name| wanted(&name, 0)).collect()
}

fn unknown() -> PartitionData<'static> {
    PartitionData {
        is_news: true,
        is_error: true,
        is_unknown: true,
        ..quiet(-1)
    }
}

/// A session of so many known and so many unknown partitions.
fn opened_with(sessions: &FetchSessions, known: usize, unknown_ones: usize) -> i32 {
    let mut data = vec![quiet(5); known];
    data.resize(known + unknown_ones, unknown());
    let request = request(0, 0, many(0..data.len()));
    let context = sessions.begin(request).unwrap();
    sessions.finish(&context, false, false, &data).unwrap().0
}

// If this failed, clients could fill the memory with requested partitions, or one client with many would
// evict all others.
#[test]
fn the_largest_session_is_evicted_for_smaller_ones() {
    const EACH: usize = PARTITIONS_PER_SLOT;
    let sessions = FetchSessions::new(3);
    let open = |count| opened_with(&sessions, count, 0);
    let has = |id| sessions.sessions.lock().contains_key(&id);
    assert_eq!(open(3 * EACH + 1), NO_SESSION);
    let (small, large) = (open(EACH / 2), open(2 * EACH));
    assert!(has(small) && has(large));
    assert_eq!(open(2 * EACH), NO_SESSION, "the other is as large");
    let third = open(EACH);
    assert!(has(third) && has(small) && !has(large));

    // A session that grows above the limit evicts a larger one. The largest itself is ended.
    let large = open(EACH * 3 / 2);
    let grow = |id, by: usize| sessions.begin(request(id, 1, many(EACH * 2..EACH * 2 + by)));
    assert!(grow(small, 1).is_ok());
    assert!(has(small) && has(third) && !has(large));
    let large = open(EACH * 3 / 2 - 1);
    assert_eq!(grow(large, 1).unwrap_err(), ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
    assert!(has(small) && has(third) && !has(large));
}

// If this failed, sessions in use would be evicted before unused ones.
#[test]
fn an_unused_session_is_evicted_first() {
    let sessions = FetchSessions::new(3);
    let (gone, large) = (opened_with(&sessions, 100, 0), opened_with(&sessions, 450, 0));
    if let Some(session) = sessions.sessions.lock().get_mut(&gone) {
        session.used -= 2 * STALE_AFTER;
    }
    assert_ne!(opened_with(&sessions, 150, 0), NO_SESSION);
    let left = sessions.sessions.lock();
    assert!(left.contains_key(&large) && !left.contains_key(&gone));
}

// If this failed, clients that request unknown partitions would evict the sessions of others.
#[test]
fn unknown_partitions_do_not_count() {
    const EACH: usize = PARTITIONS_PER_SLOT;
    let sessions = FetchSessions::new(3);
    assert_eq!(opened_with(&sessions, 1, EACH + 1), NO_SESSION);
    let of_unknown = opened_with(&sessions, 0, EACH);
    assert_ne!(of_unknown, NO_SESSION);
    let full = opened_with(&sessions, 3 * EACH, 0);
    assert!(sessions.begin(request(full, 1, vec![])).is_ok());

    // A session that gets too many unknown partitions is answered and then ended.
    let sessions = FetchSessions::new(3);
    let id = opened_with(&sessions, 0, EACH);
    let context = sessions.begin(request(id, 1, many(EACH..EACH + 1)));
    let context = context.unwrap();
    let data = vec![unknown(); EACH + 1];
    let answered = sessions.finish(&context, false, false, &data);
    assert_eq!(answered, Ok((id, vec![true; EACH + 1])));
    assert_eq!(
        sessions.begin(request(id, 2, vec![])).unwrap_err(),
        ErrorCode::FETCH_SESSION_ID_NOT_FOUND
    );
    assert_eq!(sessions.len(), 0);
}

// If this failed, a few requests with very long names would fill the memory with their sessions.
#[test]
fn impossible_topic_names_are_not_kept() {
    let sessions = FetchSessions::new(3);
    let name = "n".repeat(TOPIC_NAME_MAX * PARTITIONS_PER_SLOT);
    let context = sessions.begin(request(0, 0, vec![wanted(&name, 0)])).unwrap();
    let answered = sessions.finish(&context, false, false, &[unknown()]);
    assert_eq!(answered, Ok((NO_SESSION, vec![true])));

    let id = opened(&sessions, &["a"]);
    let context = sessions.begin(request(id, 1, vec![wanted(&name, 0)])).unwrap();
    let data = [quiet(5), unknown()];
    sessions.finish(&context, false, false, &data).unwrap();
    assert_eq!(sessions.len(), 0);
}
