//! Which partition a record goes to, by a hash of its key. Pure.
//!
//! The hashes are those of other clients, so that equal keys go to the same partition: CRC-32 (librdkafka's
//! default), murmur2 (the Java client's) and FNV-1a (Sarama's).

/// librdkafka's `partitioner` property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partitioner {
    /// A random partition; the key does not matter.
    Random,
    /// CRC-32 of the key; all records without one share a partition.
    Consistent,
    /// CRC-32 of the key; records with no key or an empty one go to random partitions.
    ConsistentRandom,
    /// murmur2 of the key; all records without one share a partition.
    Murmur2,
    /// murmur2 of the key; records with no key go to random partitions. The Java client's.
    Murmur2Random,
    /// FNV-1a of the key; all records without one share a partition.
    Fnv1a,
    /// FNV-1a of the key; records with no key go to random partitions.
    Fnv1aRandom,
}

impl Partitioner {
    /// The partitioner of this property value.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "random" => Self::Random,
            "consistent" => Self::Consistent,
            "consistent_random" => Self::ConsistentRandom,
            "murmur2" => Self::Murmur2,
            "murmur2_random" => Self::Murmur2Random,
            "fnv1a" => Self::Fnv1a,
            "fnv1a_random" => Self::Fnv1aRandom,
            _ => return None,
        })
    }

    /// The partition of `key` among `count` (at least 1); `None` asks for a random one.
    #[must_use]
    pub fn partition(self, key: Option<&[u8]>, count: i32) -> Option<i32> {
        let bytes = key.unwrap_or_default();
        let hash = match self {
            Self::Random => return None,
            Self::ConsistentRandom if bytes.is_empty() => return None,
            Self::Murmur2Random | Self::Fnv1aRandom if key.is_none() => return None,
            Self::Consistent | Self::ConsistentRandom => crc32fast::hash(bytes),
            Self::Murmur2 | Self::Murmur2Random => murmur2(bytes) & 0x7fff_ffff,
            Self::Fnv1a | Self::Fnv1aRandom => fnv1a(bytes),
        };
        Some((hash % count.max(1).unsigned_abs()) as i32)
    }
}

/// murmur2 with the seed and constants of the Java client's `Utils.murmur2`.
#[must_use]
pub fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    let mut h = SEED ^ (data.len() as u32);
    let (words, tail) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        for (index, byte) in tail.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * index);
        }
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

/// 32-bit FNV-1a, made positive the way Sarama does it.
#[must_use]
pub fn fnv1a(data: &[u8]) -> u32 {
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    let hash = data.iter().fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(PRIME)
    });
    (hash as i32).unsigned_abs()
}

/// A xorshift generator, good enough to choose the partition of records without a key.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that differs between processes and producers.
    #[must_use]
    pub fn new() -> Self {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.as_nanos() as u64);
        Self((nanos ^ (u64::from(std::process::id()) << 32)) | 1)
    }

    /// A number in `0..count`.
    pub fn below(&mut self, count: i32) -> i32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % u64::from(count.max(1).unsigned_abs())) as i32
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    //! If these fail, a key goes to another partition than with the Java client or librdkafka.
    use super::*;

    #[test]
    fn murmur2_is_the_java_clients() {
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
        assert_eq!(murmur2(b"abc") as i32, 479_470_107);
    }

    #[test]
    fn keys_land_where_librdkafka_puts_them() {
        let partitions = [
            ("kafka", 72_782, 976_536, 495_882),
            ("giberish123456789", 428_870, 239_049, 329_552),
            ("", 0, 645_856, 824_651),
            ("12345", 835_781, 115_167, 833_416),
        ];
        for (key, consistent, murmur2, fnv1a) in partitions {
            let chosen = |partitioner: Partitioner| partitioner.partition(Some(key.as_bytes()), 1_000_003);
            assert_eq!(chosen(Partitioner::Consistent), Some(consistent), "{key:?}");
            assert_eq!(chosen(Partitioner::Murmur2), Some(murmur2), "{key:?}");
            assert_eq!(chosen(Partitioner::Fnv1a), Some(fnv1a), "{key:?}");
        }
    }

    #[test]
    fn a_missing_key_goes_to_a_random_partition_only_with_some_partitioners() {
        assert_eq!(Partitioner::ConsistentRandom.partition(None, 5), None);
        assert_eq!(Partitioner::ConsistentRandom.partition(Some(b""), 5), None);
        assert_eq!(Partitioner::Murmur2Random.partition(None, 5), None);
        assert!(Partitioner::Murmur2Random.partition(Some(b""), 5).is_some());
        assert_eq!(Partitioner::Consistent.partition(None, 5), Some(0));
        assert_eq!(Partitioner::Random.partition(Some(b"k"), 5), None);
    }

    #[test]
    fn every_choice_is_within_the_topic() {
        let mut random = Random::new();
        for count in 1..50 {
            assert!((0..count).contains(&random.below(count)));
            for partitioner in [Partitioner::Consistent, Partitioner::Murmur2, Partitioner::Fnv1a] {
                let partition = partitioner
                    .partition(Some(&count.to_le_bytes()), count)
                    .expect("a key has a partition");
                assert!((0..count).contains(&partition));
            }
        }
    }
}
