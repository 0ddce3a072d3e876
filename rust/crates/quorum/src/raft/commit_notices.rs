//! Requests that only say what is committed wait a moment, so that entries can travel with them.
//!
//! A member learns with the next entries how far the log is committed. Without entries, openraft sends a
//! request of its own. It is sent at once if the member waits for it: it proposed one of the newly committed
//! entries, or the membership changes. Otherwise it waits [`DELAY`]. Mostly entries follow by then, which
//! saves a message, its response and two wakes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::{Stream, StreamExt, stream};
use openraft::Instant;
use openraft::raft::AppendEntriesRequest;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::SleepOf;

use super::types::{Entry, Payload, Types};
use crate::servers::MemberId;

const DELAY: Duration = Duration::from_millis(1);

struct Requests<C: Types, S> {
    input: stream::Fuse<S>,
    member: MemberId,
    /// A timer that was set for this request or an earlier one. Setting one for each costs more, and most are
    /// never due.
    timer: Option<Pin<Box<SleepOf<C>>>>,
    /// The entries that the member waits for and does not know to be committed, in order.
    awaited: VecDeque<u64>,
}

/// openraft's append requests for a member, without those that a later one makes needless.
pub(super) fn coalesced<C: Types>(
    member: MemberId,
    input: impl Stream<Item = AppendEntriesRequest<C>> + Unpin,
) -> impl Stream<Item = AppendEntriesRequest<C>> {
    let requests = Requests::<C, _> {
        input: input.fuse(),
        member,
        timer: None,
        awaited: VecDeque::new(),
    };
    stream::unfold(requests, |mut requests| async move {
        let request = requests.next().await?;
        Some((request, requests))
    })
}

impl<C: Types, S> Requests<C, S>
where
    S: Stream<Item = AppendEntriesRequest<C>> + Unpin,
{
    async fn next(&mut self) -> Option<AppendEntriesRequest<C>> {
        let mut request = self.input.next().await?;
        if self.may_wait(&request) {
            let since = C::now();
            while self.may_wait(&request) {
                let set = || Box::pin(C::sleep(DELAY.saturating_sub(since.elapsed())));
                let timer = self.timer.get_or_insert_with(set);
                match select(self.input.next(), timer.as_mut()).await {
                    // The later request says all that this one does.
                    Either::Left((Some(later), _)) => request = later,
                    Either::Left((None, _)) => break,
                    Either::Right(_) => {
                        self.timer = None;
                        if since.elapsed() >= DELAY {
                            break;
                        }
                    }
                }
            }
        }
        while self.commits_awaited(&request) {
            self.awaited.pop_front();
        }
        for entry in &request.entries {
            if self.waits_for(entry) {
                self.awaited.push_back(entry.log_id.index);
            }
        }
        Some(request)
    }

    fn may_wait(&self, request: &AppendEntriesRequest<C>) -> bool {
        request.entries.is_empty() && !self.commits_awaited(request)
    }

    fn commits_awaited(&self, request: &AppendEntriesRequest<C>) -> bool {
        let committed = request.leader_commit.map(|last| last.index);
        let first = self.awaited.front();
        first.is_some_and(|index| committed >= Some(*index))
    }

    fn waits_for(&self, entry: &Entry) -> bool {
        match &entry.payload {
            Payload::Blank => false,
            // All commands of an entry have the same proposer.
            Payload::Normal(commands) => commands.proposer() == Some(self.member),
            Payload::Membership(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use openraft::AsyncRuntime;
    use openraft_rt_tokio::TokioRuntime;

    use super::*;
    use crate::commands::{Command, Commands};
    use crate::raft::types::{Membership, OnTokio, log_id, vote};

    type Append = AppendEntriesRequest<OnTokio>;

    fn by(member: MemberId) -> Payload {
        let body = Bytes::new();
        let command = Command {
            member,
            ticket: 0,
            body,
        };
        Payload::Normal(Commands::new(0, &[command]))
    }

    /// Entries from index `first` on, and the last committed index.
    fn request(first: u64, payloads: Vec<Payload>, committed: u64) -> Append {
        let entries = (first..).zip(payloads).map(|(index, payload)| Entry {
            log_id: log_id(1, index),
            payload,
        });
        Append {
            vote: vote(1, 1, true),
            prev_log_id: None,
            entries: entries.collect(),
            leader_commit: Some(log_id(1, committed)),
        }
    }

    fn notice(committed: u64) -> Append {
        request(0, Vec::new(), committed)
    }

    /// What member 2 is sent at once, and what later: the number of entries, and the last committed index.
    fn sent(input: Vec<Append>) -> [Vec<(usize, u64)>; 2] {
        let shown = |request: Append| {
            let committed = request.leader_commit.map_or(0, |last| last.index);
            (request.entries.len(), committed)
        };
        let last = input.last().and_then(|request| request.leader_commit);
        TokioRuntime::new(1).block_on(async {
            let endless = stream::iter(input).chain(stream::pending());
            let mut requests = Box::pin(coalesced(2, endless));
            let (mut at_once, mut later) = (Vec::new(), Vec::new());
            while let Some(Some(request)) = requests.next().now_or_never() {
                at_once.push(shown(request));
            }
            let is_all = |sent: &[(usize, u64)]| {
                sent.last()
                    .is_some_and(|(_, committed)| Some(*committed) == last.map(|last| last.index))
            };
            while !is_all(&at_once) && !is_all(&later) {
                later.extend(requests.next().await.map(shown));
            }
            [at_once, later]
        })
    }

    /// If this failed, each commit would cost every member a message of its own.
    #[test]
    fn a_notice_travels_with_the_entries_that_follow() {
        let requests = vec![
            request(5, vec![by(1)], 4),
            notice(5),
            request(6, vec![by(3), by(1)], 5),
            notice(6),
            notice(7),
        ];
        assert_eq!(sent(requests), [vec![(1, 4), (2, 5)], vec![(0, 7)]]);
    }

    /// If this failed, a client would wait a millisecond longer for its write.
    #[test]
    fn the_proposer_is_notified_at_once() {
        let requests = vec![
            request(5, vec![by(2), by(1)], 4),
            notice(5),
            notice(6),
            request(7, vec![by(1)], 6),
        ];
        assert_eq!(sent(requests), [vec![(2, 4), (0, 5), (1, 6)], vec![]]);
        let with_entries = vec![request(5, vec![by(2)], 4), request(6, vec![by(1)], 5), notice(6)];
        assert_eq!(sent(with_entries), [vec![(1, 4), (1, 5)], vec![(0, 6)]]);
    }

    /// If this failed, only the last of several writes would be answered at once.
    #[test]
    fn the_proposer_of_several_entries_is_notified_of_each_at_once() {
        let requests = vec![
            request(5, vec![by(2)], 4),
            request(6, vec![by(2)], 4),
            notice(5),
            notice(6),
        ];
        let at_once = vec![(1, 4), (1, 4), (0, 5), (0, 6)];
        assert_eq!(sent(requests), [at_once, vec![]]);
    }

    /// If this failed, members would learn late of a change of the members.
    #[test]
    fn a_new_membership_is_notified_at_once() {
        let requests = vec![
            request(5, vec![Payload::Membership(Membership::default())], 4),
            notice(5),
        ];
        assert_eq!(sent(requests), [vec![(1, 4), (0, 5)], vec![]]);
    }

    /// If this failed, a timer that an earlier notice set would cut the delay of a later one short.
    #[test]
    fn a_notice_waits_the_whole_delay_after_an_earlier_timer() {
        TokioRuntime::new(1).block_on(async {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            let input = stream::poll_fn(move |context| receiver.poll_recv(context));
            let mut requests = Box::pin(coalesced(2, input));
            sender.send(notice(5)).unwrap();
            // It waits, unless this thread was delayed for as long.
            let _ = requests.next().now_or_never();
            sender.send(request(6, vec![by(1)], 5)).unwrap();
            assert!(requests.next().now_or_never().is_some());
            // The first notice's timer becomes due.
            std::thread::sleep(2 * DELAY);
            let since = std::time::Instant::now();
            sender.send(notice(6)).unwrap();
            assert!(requests.next().await.is_some());
            assert!(since.elapsed() >= DELAY);
        });
    }

    /// If this failed, the last notice before openraft stops would be lost.
    #[test]
    fn the_last_notice_is_sent_when_the_input_ends() {
        TokioRuntime::new(1).block_on(async {
            let requests = Box::pin(coalesced(2, stream::iter([notice(5)])));
            assert_eq!(requests.count().now_or_never(), Some(1));
        });
    }
}
