//! The dispatch of a request to its handler, in Rust or in Python.
//!
//! Owned by a connection, which handles one request at a time.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use logcore_protocol::{RequestHeader, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::api::{Outcome, api_versions, fetch, list_offsets, offset_for_leader_epoch, produce};
use crate::apis::{self, Api};
use crate::control::requests::{self, Answer, ConnectionInfo, ControlRequest};
use crate::memory::budget::Permit;
use crate::memory::frames::{FrameMemory, FramePermit};
use crate::memory::long_responses::Exclusive;
use crate::metrics::Stages;
use crate::net::busy_poll::poll_once;
use crate::net::response::Response;
use crate::quotas::Meter;
use crate::shared::Shared;

pub(crate) struct Dispatch<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) info: Arc<ConnectionInfo>,
}

/// The outcome of a request, and the buffer it was read into, if it can be used again.
pub(crate) struct Answered {
    pub(crate) outcome: Outcome,
    pub(crate) memory: Option<BytesMut>,
    pub(crate) permit: FramePermit,
}

impl From<Outcome> for Answered {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            memory: None,
            permit: FramePermit::default(),
        }
    }
}

impl Answered {
    /// Counts the response until it is sent; without memory for it, the connection is closed. The rest of the
    /// frame's share is kept only with the frame's buffer.
    fn counted(mut self, memory: &FrameMemory) -> Self {
        if let Outcome::Respond(response) = self.outcome {
            self.outcome = match response.counted(memory, &mut self.permit) {
                Ok(response) => Outcome::Respond(response),
                Err(reason) => Outcome::Close(reason),
            };
        }
        if self.memory.is_none() {
            self.permit = FramePermit::default();
        }
        self
    }
}

/// A response that Python makes. If the connection ends before it is made, the exclusive access to the
/// handler lasts until then.
struct InPython<'a> {
    response: oneshot::Receiver<requests::Answered>,
    access: Option<Exclusive<'a>>,
}

impl Drop for InPython<'_> {
    fn drop(&mut self) {
        let (Some(access), Ok(runtime)) = (self.access.take(), Handle::try_current()) else {
            return;
        };
        let permit = access.into_permit();
        let (_, never) = oneshot::channel();
        let response = std::mem::replace(&mut self.response, never);
        runtime.spawn(async move {
            let _made = response.await;
            drop(permit);
        });
    }
}

impl Dispatch<'_> {
    /// Answers one request. The buffer of a long frame comes back with the answer.
    pub(crate) async fn answer(
        &self,
        header: &RequestHeader,
        body: Bytes,
        permit: FramePermit,
        meter: &Meter<'_>,
        stages: &mut Stages,
    ) -> Answered {
        let (key, version) = (header.api_key, header.api_version);
        let Some(api) = Api::of(key).filter(|api| api.serves(version)) else {
            return answer_unserved(header, &body, stages).into();
        };
        self.shared.metrics.apis.begin(api);
        stages.name(api, version, body.len());
        let (message, mut decoded) = match self.shared.budgets.decode(api, header, &body).await {
            Ok(done) => done,
            Err(reason) => return Outcome::Close(reason).into(),
        };
        if !api.is_native() {
            drop(body);
            let crossed = self.cross(api, header, message, (permit, decoded), meter, stages);
            return crossed.await.counted(&self.shared.frames);
        }
        // A Fetch may have to wait before it has parsed its message.
        let kept = if key == fetch::KEY {
            std::mem::take(&mut decoded)
        } else {
            Permit::default()
        };
        let message = (message, kept);
        let mut work = std::pin::pin!(self.serve(header, message, body, permit, meter, stages));
        let answered = match poll_once(work.as_mut()).await {
            Some(answered) => answered,
            None => {
                // Other handlers that wait have parsed the message and dropped it.
                drop(decoded);
                work.await
            }
        };
        // A Fetch response is mostly in files, and has its own budgets.
        if key == fetch::KEY {
            return answered;
        }
        answered.counted(&self.shared.frames)
    }

    async fn serve(
        &self,
        header: &RequestHeader,
        (message, decoded): (Value, Permit),
        body: Bytes,
        mut permit: FramePermit,
        meter: &Meter<'_>,
        stages: &mut Stages,
    ) -> Answered {
        let key = header.api_key;
        if key == produce::KEY {
            let (outcome, kept) = produce::handle(self.shared, header, message, body, permit, stages).await;
            let (memory, permit) = kept.unzip();
            return Answered {
                outcome,
                memory,
                permit: permit.unwrap_or_default(),
            };
        }
        let size = body.len();
        drop(body);
        let outcome = match (key, message.as_struct()) {
            (fetch::KEY, _) => {
                permit = FramePermit::default();
                let message = (message, decoded);
                fetch::handle(self.shared, &self.info, header, message, meter, stages).await
            }
            (list_offsets::KEY, _) => {
                list_offsets::handle(self.shared, header, message, (&mut permit, size)).await
            }
            (api_versions::KEY, Some(request)) => {
                api_versions::handle(&self.shared.features.read(), header, request)
            }
            (offset_for_leader_epoch::KEY, Some(request)) => {
                offset_for_leader_epoch::handle(self.shared, header, request)
            }
            _ => {
                unreachable!("a decoded request is a struct, and every native API has its handler")
            }
        };
        Answered {
            permit,
            ..outcome.into()
        }
    }

    /// Sends the request to Python and waits for the answer. Requests with long responses are answered one at
    /// a time.
    async fn cross(
        &self,
        api: &'static Api,
        header: &RequestHeader,
        message: Value,
        (mut permit, decoded): (FramePermit, Permit),
        meter: &Meter<'_>,
        stages: &mut Stages,
    ) -> Answered {
        permit.return_reserve();
        let access = self.shared.budgets.exclusive(api, &message).await;
        let info = Arc::clone(&self.info);
        let (request, response) = ControlRequest::new(api, header.clone(), info, message, (permit, decoded));
        if !self.shared.control.put(request).await {
            return Outcome::Close("the server stops".to_owned()).into();
        }
        let waiting = self.shared.control.waiting(api, &self.info.id);
        let mut in_python = InPython { response, access };
        let answered = (&mut in_python.response).await;
        let access = in_python.access.take();
        waiting.over();
        let Ok(mut answered) = answered else {
            return Outcome::Close(format!(
                "the handler of {} version {} gave no answer",
                api.name, header.api_version
            ))
            .into();
        };
        let counted = match (&mut answered.answer, access) {
            (Answer::Frame(frame, _), Some(access)) => {
                frame.shrink_to_fit();
                // It has a budget of its own, and may wait for that.
                answered.permit = FramePermit::default();
                access.for_response(frame.len()).await
            }
            _ => Permit::default(),
        };
        stages.crossed(&answered.times);
        let outcome = match answered.answer {
            Answer::Frame(frame, errors) => {
                meter.spent(answered.spent);
                Outcome::Respond(
                    Response::from_frame(frame, errors).with_permits([counted, Permit::default()]),
                )
            }
            Answer::Close => Outcome::Close(format!(
                "the handler of {} version {} asked for it",
                api.name, header.api_version
            )),
        };
        Answered {
            permit: answered.permit,
            ..outcome.into()
        }
    }
}

/// Like Kafka, answers ApiVersions in any version, and closes the connection for every other unserved
/// request.
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
