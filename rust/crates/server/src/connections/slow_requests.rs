//! The slow-request log: requests that took long in the broker itself.
//!
//! A request is slow if the broker's own time for it is above `slow.request.log.ms`. Waiting for others (a
//! long poll, replicas, the members of a group) does not count, nor does sending, which depends on the
//! client. Each API has one line a minute, with the number of slow requests in between. The log is on unless
//! the setting is -1: a second of own time means a slow disk, lock or handler, which an operator must know
//! of.

use logcore_protocol::RequestHeader;

use crate::apis::Api;
use crate::control::requests::ConnectionInfo;
use crate::log_lines::{Fields, Level};
use crate::metrics::Stages;
use crate::shared::Shared;

/// Writes a line about a request whose response is ready, if it was slow.
pub(crate) fn report(shared: &Shared, info: &ConnectionInfo, header: &RequestHeader, stages: &Stages) {
    let is_slow = |limit| stages.own() >= limit;
    if let Some(api) = stages.api
        && shared.config.slow_request.is_some_and(is_slow)
    {
        let line = line(api, info, header, stages);
        let key = format!("slow {}", api.name);
        shared
            .lines
            .push_limited_with(Level::Warning, &key, line, || fields(api, info, header));
    }
}

fn fields(api: &Api, info: &ConnectionInfo, header: &RequestHeader) -> Fields {
    let client_id = header.client_id.as_deref().unwrap_or_default();
    let mut fields = info.fields();
    fields.extend([("api", api.name.to_owned()), ("client_id", client_id.to_owned())]);
    fields.push(("principal", info.principal.clone()));
    fields
}

fn line(api: &Api, info: &ConnectionInfo, header: &RequestHeader, stages: &Stages) -> String {
    let ms = |time: std::time::Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    format!(
        "slow request: {} v{} client {:?} connection {} listener {} principal {}: own {} ms (request \
         queue {}, local {}, response queue {}), waiting {} ms, throttle {} ms, {} bytes",
        api.name,
        header.api_version,
        header.client_id.as_deref().unwrap_or_default(),
        info.id,
        info.listener,
        info.principal,
        ms(stages.own()),
        ms(stages.request_queue),
        ms(stages.local()),
        ms(stages.response_queue),
        ms(stages.remote),
        ms(stages.throttle),
        stages.request_bytes,
    )
}
