//! Makes bad input of good: what a bad disk, a bad network or a bad person would send.

use super::random::Random;

/// Lengths and counts that programs forget.
const NUMBERS: [i32; 8] = [0, -1, 1, i32::MAX, i32::MIN, 0x00ff_ffff, 61, -61];

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
    let at = random.below(bytes.len());
    match random.below(9) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = random.next() as u8,
        3 => bytes.truncate(at),
        4 => {
            let more = random.below(70);
            bytes.extend(random.bytes(more));
        }
        5 => {
            let number = random.pick(&NUMBERS).to_be_bytes();
            for (byte, value) in bytes[at..].iter_mut().zip(number) {
                *byte = value;
            }
        }
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
