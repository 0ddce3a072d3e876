//! Questions whether partitions are in producers' transactions, on their way to Python and back (KIP-890).
//!
//! Python asks the transaction coordinator, which may be another broker. A Produce request waits for the
//! answers to its own questions, so there are at most as many as partitions in requests that are answered. A
//! question whose request ended is dropped with it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use logcore_protocol::ErrorCode;
use logcore_wake::WakeFd;

/// Whether a partition is in a producer's transaction, or can be added to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerificationQuestion {
    /// The number for [`crate::Server::verified`].
    pub number: u64,
    pub transactional_id: String,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub topic: String,
    pub partition: i32,
    /// The partition is added.
    pub adds: bool,
}

#[derive(Default)]
struct State {
    last: u64,
    waiting: Vec<VerificationQuestion>,
    answers: HashMap<u64, oneshot::Sender<ErrorCode>>,
}

pub(crate) struct Verifications {
    state: Mutex<State>,
    wake: Arc<WakeFd>,
}

impl Verifications {
    pub(crate) fn new(wake: Arc<WakeFd>) -> Self {
        Self {
            state: Mutex::default(),
            wake,
        }
    }

    /// Asks; the question's number is set here. The receiver fails if the server's owner does not answer.
    pub(crate) fn ask(&self, mut question: VerificationQuestion) -> Question<'_> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        question.number = number;
        state.answers.insert(number, sender);
        state.waiting.push(question);
        drop(state);
        self.wake.signal();
        Question {
            asked: self,
            number,
            receiver,
        }
    }

    pub(crate) fn take(&self) -> Vec<VerificationQuestion> {
        std::mem::take(&mut self.state.lock().waiting)
    }

    /// The answer; an unknown number is one whose request ended.
    pub(crate) fn answer(&self, number: u64, code: ErrorCode) {
        let sender = self.state.lock().answers.remove(&number);
        if let Some(sender) = sender {
            // Fails if the request ended meanwhile.
            let _ = sender.send(code);
        }
    }
}

/// A question that was asked.
pub(crate) struct Question<'a> {
    asked: &'a Verifications,
    number: u64,
    receiver: oneshot::Receiver<ErrorCode>,
}

impl Question<'_> {
    /// The coordinator's answer; `None` if there will be none.
    pub(crate) async fn answer(&mut self) -> Option<ErrorCode> {
        (&mut self.receiver).await.ok()
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut state = self.asked.state.lock();
        state.answers.remove(&self.number);
        state.waiting.retain(|question| question.number != self.number);
    }
}
