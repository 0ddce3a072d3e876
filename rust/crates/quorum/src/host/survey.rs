//! Asks the other servers what they are, while this one has no ensemble or cannot reach it.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use futures_util::future::join_all;

use super::shared::Shared;
use crate::files::snapshots::SnapshotFile;
use crate::raft::requests::{Links, MemberInfo, Request, RequestError, Response};
use crate::raft::types::OnTokio;
use crate::servers::{MemberId, Server};
use crate::transport::handshake::Identity;
use crate::transport::links::TcpLinks;

/// The time in which a server must answer.
const TIMEOUT: Duration = Duration::from_millis(1_500);
/// The pause before the others are asked again.
pub(super) const PAUSE: Duration = Duration::from_millis(200);
/// The operator is warned when something takes longer.
pub(super) const LONG: Duration = Duration::from_secs(5);
/// After this time a majority founds an ensemble without the servers that do not answer. One of them may have
/// a state with which the ensemble is to begin.
pub(super) const ALL_ANSWER: Duration = Duration::from_secs(5);
/// The first bytes of an ensemble's id come from its servers; the rest comes from the founding.
pub(super) const ID_OF_SERVERS: usize = 8;

/// Whether two ids belong to ensembles of the same servers.
pub(super) fn has_same_servers(ensemble: &[u8; 16], other: &[u8; 16]) -> bool {
    ensemble[..ID_OF_SERVERS] == other[..ID_OF_SERVERS]
}

/// The answers of the other servers.
pub(super) struct Survey {
    /// Members that know of committed entries.
    pub(super) grown: Vec<MemberInfo>,
    /// Servers with a state with which they found an ensemble.
    pub(super) with_state: Vec<u16>,
    /// Voters that have nothing and would found this ensemble.
    fresh: Vec<Server>,
    /// How many of them are bound to this ensemble.
    pub(super) bound: usize,
    /// Why the other servers do not count.
    pub(super) absent: Vec<String>,
}

/// Connections for questions to servers, whose members are not known.
pub(super) fn links(shared: &Shared) -> TcpLinks<OnTokio> {
    TcpLinks::new(Identity {
        ensemble: [0; 16],
        member: 0,
        server: shared.me.id,
    })
}

async fn ask(
    links: &TcpLinks<OnTokio>,
    server: &Server,
    request: Request<OnTokio, SnapshotFile>,
) -> Result<Response<OnTokio>, RequestError> {
    links.request(server.id.into(), server, request, TIMEOUT).await
}

/// Asks all other servers whether they would found this ensemble.
pub(super) async fn ask_all(shared: &Shared, links: &TcpLinks<OnTokio>, ensemble: [u8; 16]) -> Survey {
    let ask = |server: Server| async move {
        let answer = ask(links, &server, Request::Identify).await;
        (server, answer)
    };
    let answers = join_all(shared.others().into_iter().map(ask)).await;
    let mut survey = Survey {
        grown: Vec::new(),
        with_state: Vec::new(),
        fresh: Vec::new(),
        bound: 0,
        absent: Vec::new(),
    };
    for (server, answer) in answers {
        let info = match answer {
            Ok(Response::Identity(info)) => info,
            Ok(_) => {
                survey
                    .absent
                    .push(format!("server {}: it is not a member", server.id));
                continue;
            }
            Err(why) => {
                survey.absent.push(format!("server {}: {why}", server.id));
                continue;
            }
        };
        if !info.fresh {
            survey.grown.push(info);
        } else if info.has_state {
            survey.with_state.push(server.id);
        } else if !has_same_servers(&info.ensemble, &shared.founding_id) {
            survey.absent.push(format!(
                "server {}: it has no data either, and its file names other servers",
                server.id
            ));
        } else if info.member != 0 && info.ensemble != ensemble {
            survey.absent.push(format!(
                "server {}: it waits for another ensemble that was never founded; to give that up, empty its \
                 data directory",
                server.id
            ));
        } else if !server.observer {
            survey.bound += usize::from(info.member != 0);
            survey.fresh.push(server);
        }
    }
    survey
}

impl Survey {
    /// Whether this server and those that answered may found an ensemble. `is_late`: a majority is enough.
    pub(super) fn may_found(&self, shared: &Shared, is_late: bool) -> bool {
        let (voters, present) = (shared.voters().count(), self.fresh.len() + 1);
        let is_enough = present == voters || is_late && present > voters / 2;
        !shared.me.observer && self.grown.is_empty() && is_enough
    }

    /// Binds the servers that would found this ensemble to it. Returns whether they and this server, which
    /// must be bound, are a majority.
    pub(super) async fn bind(&self, shared: &Shared, links: &TcpLinks<OnTokio>, ensemble: [u8; 16]) -> bool {
        let bind = |server| ask(links, server, Request::Bind(ensemble));
        let bound = join_all(self.fresh.iter().map(bind)).await;
        let bound = bound.into_iter().filter(Result::is_ok).count();
        bound + 1 > shared.voters().count() / 2
    }

    /// Asks the ensemble's leader to make this member one of it.
    pub(super) async fn join(
        &self,
        shared: &Shared,
        links: &TcpLinks<OnTokio>,
        member: MemberId,
    ) -> Result<(), String> {
        let Some(leader) = self.grown.iter().find_map(|info| info.leader.as_ref()) else {
            return Err("it has no leader".to_owned());
        };
        match ask(links, leader, Request::Join(member, shared.me.clone())).await {
            Ok(Response::Joining) => Ok(()),
            Ok(_) => Err(RequestError::unexpected().to_string()),
            Err(RequestError::TimedOut) => Err("its leader does not answer".to_owned()),
            Err(why) => Err(why.to_string()),
        }
    }
}

pub(super) fn random<const BYTES: usize>() -> Result<[u8; BYTES], String> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| format!("reading /dev/urandom: {error}"))?;
    Ok(bytes)
}
