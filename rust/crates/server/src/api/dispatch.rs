//! Who answers a request: Rust what is on the data path, Python everything else.
//!
//! Owned by a connection, which has one request answered at a time.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use logcore_protocol::{RequestHeader, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::api::{Outcome, api_versions, fetch, list_offsets, offset_for_leader_epoch, produce};
use crate::apis::{self, Api};
use crate::control::requests::{self, Answer, ConnectionInfo, ControlRequest};
use crate::memory::answers::Turn;
use crate::memory::frames::{Charge, Held, RequestMemory};
use crate::metrics::Stages;
use crate::net::busy_poll::at_once;
use crate::net::response::Response;
use crate::quotas::Meter;
use crate::shared::Shared;

/// What a connection's requests are answered with.
pub(crate) struct Dispatch<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) info: Arc<ConnectionInfo>,
}

/// What became of a request, and the memory it was read into, if it is wanted back.
pub(crate) struct Answered {
    pub(crate) outcome: Outcome,
    pub(crate) memory: Option<BytesMut>,
    pub(crate) charge: Charge,
}

impl From<Outcome> for Answered {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            memory: None,
            charge: Charge::default(),
        }
    }
}

impl Answered {
    /// A response is counted until it was sent, or not sent if there is no memory for it; of the charge remains what a frame's
    /// memory needs that is read into again.
    fn covered(mut self, memory: &RequestMemory) -> Self {
        if let Outcome::Respond(response) = self.outcome {
            let size = response.wire_size();
            self.outcome = match response.covered(memory, &mut self.charge) {
                Some(response) => Outcome::Respond(response),
                None => Outcome::Close(format!(
                    "no memory was left for its response of {size} bytes: others do not read theirs, or \
                     queued.max.request.bytes must be raised"
                )),
            };
        }
        if self.memory.is_none() {
            self.charge = Charge::default();
        }
        self
    }
}

/// An answer that Python makes. It goes on making it when nobody waits any more, and has the turn as long.
struct Making {
    answer: oneshot::Receiver<requests::Answered>,
    turn: Option<Turn>,
}

impl Drop for Making {
    fn drop(&mut self) {
        let (Some(turn), Ok(runtime)) = (self.turn.take(), Handle::try_current()) else {
            return;
        };
        let (_, nobody) = oneshot::channel();
        let answer = std::mem::replace(&mut self.answer, nobody);
        runtime.spawn(async move {
            let _made = answer.await;
            drop(turn);
        });
    }
}

impl Dispatch<'_> {
    /// Answers one request; large frames' memory comes back when the handler is done with it.
    pub(crate) async fn answer(
        &self,
        header: &RequestHeader,
        body: Bytes,
        charge: Charge,
        meter: &Meter<'_>,
        stages: &mut Stages,
    ) -> Answered {
        let (key, version) = (header.api_key, header.api_version);
        let Some(api) = Api::of(key).filter(|api| api.serves(version)) else {
            return answer_unserved(header, &body, stages).into();
        };
        self.shared.metrics.apis.begin(api);
        stages.name(api, version, body.len());
        let (message, mut held) = match self.shared.decoded.decode(api, header, &body).await {
            Ok(decoded) => decoded,
            Err(reason) => return Outcome::Close(reason).into(),
        };
        if !api.is_native() {
            drop(body);
            let crossed = self.cross(api, header, message, (charge, held), meter, stages);
            return crossed.await.covered(&self.shared.memory);
        }
        // A fetch may have to wait before it is done with its message.
        let kept = held.take_if(|_| key == fetch::KEY);
        let message = (message, kept);
        let mut work = std::pin::pin!(self.serve(header, message, body, charge, meter, stages));
        let answered = match at_once(work.as_mut()).await {
            Some(answered) => answered,
            None => {
                // Nothing of the message is left where another handler waits.
                drop(held);
                work.await
            }
        };
        // What a fetch tells is mostly in files, and has rooms of its own.
        if key == fetch::KEY {
            return answered;
        }
        answered.covered(&self.shared.memory)
    }

    /// Answers what Rust answers.
    async fn serve(
        &self,
        header: &RequestHeader,
        (message, held): (Value, Held),
        body: Bytes,
        mut charge: Charge,
        meter: &Meter<'_>,
        stages: &mut Stages,
    ) -> Answered {
        let key = header.api_key;
        if key == produce::KEY {
            let (outcome, kept) = produce::handle(self.shared, header, message, body, charge, stages).await;
            let (memory, charge) = kept.unzip();
            return Answered {
                outcome,
                memory,
                charge: charge.unwrap_or_default(),
            };
        }
        let size = body.len();
        drop(body);
        let outcome = match (key, message.as_struct()) {
            (fetch::KEY, _) => {
                charge = Charge::default();
                let message = (message, held);
                fetch::handle(self.shared, &self.info, header, message, meter, stages).await
            }
            (list_offsets::KEY, _) => {
                list_offsets::handle(self.shared, header, message, (&mut charge, size)).await
            }
            (api_versions::KEY, Some(request)) => api_versions::handle(header, request),
            (offset_for_leader_epoch::KEY, Some(request)) => {
                offset_for_leader_epoch::handle(self.shared, header, request)
            }
            _ => {
                unreachable!("a decoded request is a struct, and every native API has its handler")
            }
        };
        Answered {
            charge,
            ..outcome.into()
        }
    }

    /// Hands the request to Python and waits for its answer, in turn with others whose answers may be as large.
    async fn cross(
        &self,
        api: &'static Api,
        header: &RequestHeader,
        message: Value,
        (mut charge, held): (Charge, Held),
        meter: &Meter<'_>,
        stages: &mut Stages,
    ) -> Answered {
        charge.leave_lane();
        let turn = self.shared.answers.turn(api, &message).await;
        let info = Arc::clone(&self.info);
        let (request, answer) = ControlRequest::new(api, header.clone(), info, message, (charge, held));
        if !self.shared.control.put(request).await {
            return Outcome::Close("the server stops".to_owned()).into();
        }
        let waiting = self.shared.control.waiting(api, &self.info.id);
        let mut making = Making { answer, turn };
        let answer = (&mut making.answer).await;
        let turn = making.turn.take();
        waiting.over();
        let Ok(mut answered) = answer else {
            return Outcome::Close(format!(
                "the handler of {} version {} gave no answer",
                api.name, header.api_version
            ))
            .into();
        };
        let held = match (&mut answered.answer, turn) {
            (Answer::Frame(frame, _), Some(turn)) => {
                frame.shrink_to_fit();
                // It has another memory than its request's, and may wait for it.
                answered.charge = Charge::default();
                turn.room(frame.len()).await
            }
            _ => None,
        };
        stages.crossed(&answered.times);
        let outcome = match answered.answer {
            Answer::Frame(frame, errors) => {
                meter.spent(answered.spent);
                Outcome::Respond(Response::from_frame(frame, errors).counted([held, None]))
            }
            Answer::Close => Outcome::Close(format!(
                "the handler of {} version {} asked for it",
                api.name, header.api_version
            )),
        };
        Answered {
            charge: answered.charge,
            ..outcome.into()
        }
    }
}

/// Kafka answers ApiVersions of any version and closes the connection for everything else it does not serve.
fn answer_unserved(header: &RequestHeader, body: &[u8], stages: &mut Stages) -> Outcome {
    match Api::of(header.api_key) {
        Some(api) if api.key == apis::API_VERSIONS => {
            stages.name(api, header.api_version, body.len());
            api_versions::handle_unsupported(header)
        }
        _ => Outcome::Close(format!(
            "request for API {} version {}, which is not served here",
            header.api_key, header.api_version
        )),
    }
}
