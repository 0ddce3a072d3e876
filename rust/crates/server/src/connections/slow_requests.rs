//! The slow-request log: requests the broker itself took long for.
//!
//! Long are those above `slow.request.log.ms`, without what they waited for others (a long poll, replicas, the members of a
//! group) and without sending, which takes as long as the client takes to read. One line a minute for each API, with the
//! number of those in between: a broker that is slow for everybody has no time to say so for each. On unless it is set to -1, for
//! what took a second of a broker's own time is a disk, a lock or a handler that somebody has to look at.

use logcore_protocol::{Direction, RequestHeader, schema};

use crate::control::requests::ConnectionInfo;
use crate::log_lines::{Fields, Level};
use crate::metrics::Stages;
use crate::shared::Shared;

/// Writes a line about a request whose answer is ready, if it was slow.
pub(crate) fn tell(shared: &Shared, info: &ConnectionInfo, header: &RequestHeader, stages: &Stages) {
    let is_slow = |limit| stages.own() >= limit;
    if shared.config.slow_request.is_some_and(is_slow) && stages.is_named() {
        let line = line(info, header, stages);
        let key = format!("slow {}", header.api_key);
        shared
            .lines
            .seldom_with(Level::Warning, &key, line, || fields(info, header));
    }
}

fn fields(info: &ConnectionInfo, header: &RequestHeader) -> Fields {
    let api = schema(header.api_key, Direction::Request).map_or("?", |schema| schema.name);
    let client_id = header.client_id.as_deref().unwrap_or_default();
    let mut fields = info.fields();
    fields.extend([("api", api.to_owned()), ("client_id", client_id.to_owned())]);
    fields.push(("principal", info.principal.clone()));
    fields
}

fn line(info: &ConnectionInfo, header: &RequestHeader, stages: &Stages) -> String {
    let name = schema(header.api_key, Direction::Request).map_or("?", |schema| schema.name);
    let ms = |time: std::time::Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    format!(
        "slow request: {name} v{} client {:?} connection {} listener {} principal {}: own {} ms (request queue {}, local {}, response queue {}), waiting {} ms, throttle {} ms, {} bytes",
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
