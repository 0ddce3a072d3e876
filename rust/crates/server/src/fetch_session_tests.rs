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

fn quiet(high_watermark: i64) -> Told<'static> {
    Told {
        topic: None,
        high_watermark,
        log_start_offset: 0,
        is_news: false,
        is_error: false,
        has_records: false,
    }
}

fn records(high_watermark: i64) -> Told<'static> {
    Told {
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
    let told = vec![quiet(5); partitions.len()];
    let context = sessions.begin(request(0, 0, partitions)).unwrap();
    sessions.finish(&context, false, false, &told).unwrap().0
}

// If this failed, a consumer would miss partitions it asked for, or be sent ones that did not change.
#[test]
fn an_incremental_fetch_tells_what_changed_and_no_more() {
    let sessions = FetchSessions::new(10);
    let id = opened(&sessions, &["a", "b", "c"]);
    assert!(id > 0);

    let context = sessions
        .begin(request(id, 1, vec![wanted("b", 9)]))
        .unwrap();
    assert_eq!(topics(&context), ["a", "b", "c"]);
    assert_eq!(context.wanted()[1].offset, 9);
    let (same, must) = sessions
        .finish(&context, false, false, &[records(5), quiet(5), quiet(6)])
        .unwrap();
    assert_eq!((same, must), (id, vec![true, false, true]));

    // The one with records went to the end, and what was told is not told again.
    let mut next = request(id, 2, vec![wanted("d", 0)]);
    next.forgotten.push((TopicRef::Name("b".into()), 0));
    let context = sessions.begin(next).unwrap();
    assert_eq!(topics(&context), ["c", "a", "d"]);
    let (_, must) = sessions
        .finish(&context, false, false, &[quiet(6), quiet(5), quiet(0)])
        .unwrap();
    assert_eq!(must, [false, false, true]);
}

// If this failed, an error would be told once and its end never, and the consumer would wait for ever.
#[test]
fn the_end_of_an_error_is_told() {
    let sessions = FetchSessions::new(10);
    let id = opened(&sessions, &["a"]);
    let error = Told {
        is_news: true,
        is_error: true,
        ..quiet(-1)
    };
    for (epoch, told, expected) in [(1, error, true), (2, quiet(5), true), (3, quiet(5), false)] {
        let context = sessions.begin(request(id, epoch, vec![])).unwrap();
        let (_, must) = sessions.finish(&context, false, false, &[told]).unwrap();
        assert_eq!(must, [expected], "epoch {epoch}");
    }
}

// If this failed, a repeated, foreign or stale request would be answered out of someone else's session.
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

// If this failed, clients that come and go would fill the broker's memory, or push out those that work.
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

// If this failed, consumers would push out the sessions of brokers, or brokers would get none while consumers fetch.
#[test]
fn a_followers_session_is_worth_more_than_a_consumers() {
    let sessions = FetchSessions::new(1);
    let ask = |is_follower: bool, names: &[&str]| {
        let partitions: Vec<_> = names.iter().map(|name| wanted(name, 0)).collect();
        let told = vec![quiet(5); partitions.len()];
        let context = sessions.begin(request(0, 0, partitions)).unwrap();
        sessions
            .finish(&context, false, is_follower, &told)
            .unwrap()
            .0
    };
    let consumer = ask(false, &["a", "b"]);
    assert_ne!(consumer, NO_SESSION);
    assert_eq!(
        ask(false, &["a", "b", "c"]),
        NO_SESSION,
        "the first is young"
    );
    let follower = ask(true, &["a"]);
    assert_ne!(follower, NO_SESSION);
    assert!(sessions.begin(request(consumer, 1, vec![])).is_err());
    assert_eq!(
        ask(true, &["a", "b"]),
        NO_SESSION,
        "a young follower's stays"
    );
    assert_eq!(ask(false, &["a", "b"]), NO_SESSION);
    assert!(sessions.begin(request(follower, 1, vec![])).is_ok());
}

// If this failed, clients could fill the memory with partitions they say they want.
#[test]
fn all_sessions_together_have_so_many_partitions() {
    let sessions = FetchSessions::new(2);
    let many = |count: usize| -> Vec<Wanted> {
        let names = (0..count).map(|number| number.to_string());
        names.map(|name| wanted(&name, 0)).collect()
    };
    let open = |count| {
        let told = vec![quiet(5); count];
        let context = sessions.begin(request(0, 0, many(count))).unwrap();
        sessions.finish(&context, false, false, &told).unwrap().0
    };
    assert_eq!(open(2 * PARTITIONS_PER_SLOT + 1), NO_SESSION);
    let first = open(PARTITIONS_PER_SLOT + 1);
    assert_ne!(first, NO_SESSION);
    assert_eq!(open(PARTITIONS_PER_SLOT), NO_SESSION);
    let second = open(PARTITIONS_PER_SLOT - 1);
    assert_ne!(second, NO_SESSION);
    // One that grows beyond is told to begin again.
    let grown = sessions.begin(request(first, 1, vec![wanted("one more", 0)]));
    assert_eq!(grown.unwrap_err(), ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
    assert_eq!(sessions.len(), 1);
    assert!(sessions.begin(request(second, 1, many(1))).is_ok());
}
