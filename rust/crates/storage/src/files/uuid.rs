//! Kafka's ids: 16 random bytes, written as URL-safe base64 without padding (`org.apache.kafka.common.Uuid`):
//! 22 characters that never begin with a dash.

use std::fs::File;
use std::io::Read;

use crate::error::{Result, StorageError};

/// The id of a topic.
pub type TopicId = [u8; 16];

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub fn encode(id: &TopicId) -> String {
    let mut text = String::with_capacity(22);
    for chunk in id.chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * index)) as usize & 63]));
        }
    }
    text
}

/// The id of 22 characters; `None` when they are no id.
pub fn decode(text: &str) -> Option<TopicId> {
    let text = text.trim_end_matches('=');
    if text.len() != 22 {
        return None;
    }
    let mut id = [0; 16];
    let (mut bits, mut count, mut at) = (0u32, 0, 0);
    for byte in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == byte)?;
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            if let Some(slot) = id.get_mut(at) {
                *slot = (bits >> count) as u8;
            }
            at += 1;
        }
    }
    Some(id)
}

/// A new random id (version 4). It never begins with a dash, so it can be an argument on a command line.
pub fn random() -> Result<TopicId> {
    loop {
        let mut id = [0; 16];
        File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut id))
            .map_err(StorageError::io("read", "/dev/urandom"))?;
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        if !encode(&id).starts_with('-') {
            return Ok(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: topic ids on disk and on the wire would differ from Kafka's.
    #[test]
    fn golden() {
        // The bytes 0 to 15, as Java's Base64.getUrlEncoder().withoutPadding() writes them.
        let id: TopicId = std::array::from_fn(|i| i as u8);
        assert_eq!(encode(&id), "AAECAwQFBgcICQoLDA0ODw");
        assert_eq!(decode("AAECAwQFBgcICQoLDA0ODw"), Some(id));
        assert_eq!(encode(&[0xff; 16]), "_____________________w");
        for bad in ["", "AAECAwQFBgcICQoLDA0OD", "AAECAwQFBgcICQoLDA0OD!"] {
            assert_eq!(decode(bad), None);
        }
        let random = random().unwrap();
        assert_eq!(decode(&encode(&random)), Some(random));
    }
}
