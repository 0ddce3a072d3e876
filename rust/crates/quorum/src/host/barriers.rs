//! Read barriers: everything that was committed before a barrier was asked for is delivered before it is
//! answered.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use tokio::time::{sleep, timeout};

use super::shared::{Node, Shared, TICK};

/// The time in which a leader must answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The pause before a leader is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks the leader for the index up to which to read, once for all barriers that wait.
pub(super) async fn answer(shared: Arc<Shared>, node: Node) -> Result<(), String> {
    let mut watch = node.member.watch();
    loop {
        let barriers = std::mem::take(&mut *shared.barriers.lock());
        if barriers.is_empty() {
            shared.barriers_more.notified().await;
            continue;
        }
        let leader = watch.leader();
        let index = {
            let read = pin!(node.member.read_index(&node.links, TIMEOUT));
            // A leader that was replaced may never answer.
            let replaced = pin!(watch.leader_changes(leader.as_ref()));
            match timeout(TIMEOUT, select(read, replaced)).await {
                Ok(Either::Left((read, _))) => read.ok(),
                Ok(Either::Right(_)) | Err(_) => None,
            }
        };
        match index {
            Some(index) => shared.events.add_barriers(index, barriers),
            None => {
                // In front of the barriers that came meanwhile.
                shared.barriers.lock().splice(..0, barriers);
                let _ = timeout(PAUSE, watch.changed()).await;
            }
        }
    }
}

/// Refuses barriers after their deadline, whether the member has started or not.
pub(super) async fn expire(shared: Arc<Shared>) -> Result<(), String> {
    loop {
        sleep(TICK).await;
        let now = Instant::now();
        let late: Vec<_> = {
            let mut waiting = shared.barriers.lock();
            waiting.extract_if(.., |(_, deadline)| *deadline <= now).collect()
        };
        if !late.is_empty() {
            let numbers = late.into_iter().map(|(number, _)| number);
            shared.events.refuse_barriers(numbers);
        }
        shared.events.expire_barriers(Some(now));
    }
}

/// Refuses all barriers, because the member stops.
pub(super) fn refuse_all(shared: &Shared) {
    let waiting = std::mem::take(&mut *shared.barriers.lock());
    let numbers = waiting.into_iter().map(|(number, _)| number);
    shared.events.refuse_barriers(numbers);
    shared.events.expire_barriers(None);
}
