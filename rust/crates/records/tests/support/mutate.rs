//! Damages valid input, as a bad disk, a bad network or an attacker would.

use super::random::Random;

/// Edge cases of lengths and counts.
const NUMBERS: [i32; 8] = [0, -1, 1, i32::MAX, i32::MIN, 0x00ff_ffff, 61, -61];
/// Edge cases of offsets and timestamps.
const LONG_NUMBERS: [i64; 6] = [-1, 0, i64::MAX, i64::MAX - 1, i64::MIN, i64::MAX / 2];

/// One of `inputs` with a few changes.
pub(crate) fn mutated(random: &mut Random, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(inputs).clone();
    for _ in 0..random.below(6) {
        change(random, &mut bytes, inputs);
    }
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
    if bytes.is_empty() {
        let more = random.below(40);
        bytes.extend(random.bytes(more));
        return;
    }
    // In many formats the first bytes decide how the rest is read.
    let at = if random.one_in(8) {
        0
    } else {
        random.below(bytes.len())
    };
    match random.below(10) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = random.next() as u8,
        3 => bytes.truncate(at),
        4 => {
            let more = random.below(70);
            bytes.extend(random.bytes(more));
        }
        5 => put(&mut bytes[at..], &random.pick(&NUMBERS).to_be_bytes()),
        8 => put(&mut bytes[at..], &random.pick(&LONG_NUMBERS).to_be_bytes()),
        6 => {
            let end = random.between(at, bytes.len());
            bytes.drain(at..end);
        }
        7 => {
            let end = random.between(at, bytes.len().min(at + 200));
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        _ => {
            let other = random.pick(inputs);
            let from = random.below(other.len().max(1)).min(other.len());
            bytes.truncate(at);
            bytes.extend(&other[from..]);
        }
    }
}

fn put(target: &mut [u8], number: &[u8]) {
    for (byte, value) in target.iter_mut().zip(number) {
        *byte = *value;
    }
}
