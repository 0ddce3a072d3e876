//! Before the first batch of a transaction in a partition: is the partition in it? Or it is added (KIP-890;
//! `ReplicaManager.maybeSendPartitionsToTransactionCoordinator`, `AddPartitionsToTxnManager`).

use std::sync::Arc;
use std::time::Duration;

use logcore_protocol::ErrorCode;
use logcore_records::BatchHeader;
use logcore_storage::Verification;

use super::{Part, Request};
use crate::control::verifications::{Question, VerificationQuestion};
use crate::partitions::registry::Partition;
use crate::shared::Shared;

/// From this version on, Produce may be answered with TRANSACTION_ABORTABLE.
const KNOWS_ABORTABLE: i16 = 11;
/// From this version on, the producer adds no partitions to its transactions itself.
const ADDS: i16 = 12;

/// A part's way into the transaction.
pub(super) struct Verified {
    partition: Arc<Partition>,
    producer_id: i64,
    pub(super) verification: Verification,
}

impl Drop for Verified {
    fn drop(&mut self) {
        if let Verification::Guarded(guard) = self.verification {
            // Without effect after the append.
            self.partition.log.give_up_verification(self.producer_id, guard);
        }
    }
}

type Asked<'a> = (Verified, Option<Question<'a>>);

/// For each part: how its batches are let in, or why not. `None` without a transaction. All questions are
/// asked at once.
pub(super) async fn verify(
    shared: &Shared,
    version: i16,
    request: &Request,
    memory: &[u8],
) -> Vec<Option<Result<Verified, ErrorCode>>> {
    let adds = version >= ADDS;
    let is_asked = adds || shared.dynamic.read().verify_transactions;
    if request.transactional_id.is_none() || !is_asked {
        return request.parts.iter().map(|_| None).collect();
    }
    let asked: Vec<_> = request
        .parts
        .iter()
        .map(|part| ask(shared, request, part, adds, memory))
        .collect();
    let mut verified = Vec::with_capacity(asked.len());
    for asked in asked {
        verified.push(match asked {
            None => None,
            Some((verified, None)) => Some(Ok(verified)),
            Some((verified, Some(mut question))) => {
                let code = answer(shared, request.timeout, &mut question).await;
                Some(if code == ErrorCode::NONE {
                    Ok(verified)
                } else {
                    Err(for_client(code, version))
                })
            }
        });
    }
    verified
}

fn ask<'a>(
    shared: &'a Shared,
    request: &Request,
    part: &Part,
    adds: bool,
    memory: &[u8],
) -> Option<Asked<'a>> {
    let partition = part.partition.as_ref()?;
    // Anything else is refused by the checks that follow.
    let header = BatchHeader::parse(&memory[part.records.clone()]).ok()?;
    if !header.is_transactional() || header.is_control() || partition.lead(shared.node_id, -1).is_err() {
        return None;
    }
    let begin = || {
        partition
            .log
            .begin_verification(header.producer_id, header.producer_epoch)
    };
    let guard = tokio::task::block_in_place(begin);
    let verified = |verification| Verified {
        partition: Arc::clone(partition),
        producer_id: header.producer_id,
        verification,
    };
    let Some(guard) = guard else {
        return Some((verified(Verification::Open), None));
    };
    let question = shared.verifications.ask(VerificationQuestion {
        number: 0,
        transactional_id: request.transactional_id.clone().unwrap_or_default(),
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        topic: partition.topic.to_string(),
        partition: partition.index,
        adds,
    });
    Some((verified(Verification::Guarded(guard)), Some(question)))
}

async fn answer(shared: &Shared, timeout: Duration, question: &mut Question<'_>) -> ErrorCode {
    let mut stopping = shared.stopping.subscribe();
    tokio::select! {
        answered = question.answer() => answered.unwrap_or(ErrorCode::COORDINATOR_NOT_AVAILABLE),
        () = tokio::time::sleep(timeout) => ErrorCode::NETWORK_EXCEPTION,
        _ = stopping.wait_for(|stopping| *stopping) => ErrorCode::COORDINATOR_NOT_AVAILABLE,
    }
}

/// What Kafka answers: a code at which every producer tries again, or stops.
fn for_client(code: ErrorCode, version: i16) -> ErrorCode {
    match code {
        ErrorCode::CONCURRENT_TRANSACTIONS if version >= ADDS => code,
        ErrorCode::CONCURRENT_TRANSACTIONS
        | ErrorCode::NETWORK_EXCEPTION
        | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
        | ErrorCode::COORDINATOR_NOT_AVAILABLE
        | ErrorCode::NOT_COORDINATOR => ErrorCode::NOT_ENOUGH_REPLICAS,
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        ErrorCode::TRANSACTION_ABORTABLE if version < KNOWS_ABORTABLE => ErrorCode::INVALID_TXN_STATE,
        other => other,
    }
}
