//! A map from the digest of a key to the key's last offset, in bounded memory (`SkimpyOffsetMap`).
//!
//! One flat table of 24-byte slots with linear probing: a digest of 128 bits and the offset. Keys are not
//! kept, so two keys with one digest would count as one, and the older record would be lost. Kafka uses MD5,
//! for which a producer can construct such keys. Here the digest is SipHash-1-3 of the standard library with
//! two random keys, new for each map. It is as unlikely to collide by chance, cannot be made to collide, and
//! is several times as fast on short keys. No digest reaches the disk.
//!
//! The table is as large as the buffer allows, at most as large as the range of offsets needs. The system
//! zeroes its pages at the first access. A probe is a cache miss, so the keys of a batch are looked up
//! together: first all their slots are loaded, then each is searched. One cleaner thread uses a map; a crash
//! leaves nothing.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Bytes of a slot, as in Kafka: a digest of 16 and an offset of 8.
const SLOT_BYTES: u64 = 24;
/// Slots for each offset of a range: few collisions for half as much memory again.
const SLOTS_PER_OFFSET: f64 = 1.5;

/// The digest of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest([u64; 2]);

#[derive(Debug)]
pub(crate) struct OffsetMap {
    /// Digest and offset plus one. Zero there is an empty slot.
    slots: Vec<[u64; 3]>,
    entries: usize,
    entries_max: usize,
    /// The offset up to which the map is complete.
    latest: i64,
    hashers: [RandomState; 2],
}

/// The map accepts no new key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// The number of entries of a buffer of `bytes` that is filled to `load_factor`.
pub(crate) fn capacity(bytes: u64, load_factor: f64) -> usize {
    ((bytes / SLOT_BYTES) as f64 * load_factor) as usize
}

impl OffsetMap {
    /// A map in at most `bytes` of memory for a range of `span` offsets, filled to at most `load_factor`.
    pub(crate) fn new(bytes: u64, load_factor: f64, span: u64) -> Self {
        let most = bytes / SLOT_BYTES;
        let needed = ((span as f64 * SLOTS_PER_OFFSET) as u64).saturating_add(8);
        let slots = usize::try_from(most.min(needed).max(1)).unwrap_or(usize::MAX);
        Self {
            slots: vec![[0; 3]; slots],
            entries: 0,
            // One slot stays empty, so every search ends.
            entries_max: capacity(slots as u64 * SLOT_BYTES, load_factor).min(slots - 1),
            latest: -1,
            hashers: [RandomState::new(), RandomState::new()],
        }
    }

    pub(crate) fn digest(&self, key: &[u8]) -> Digest {
        Digest(std::array::from_fn(|number| {
            let mut hasher = self.hashers[number].build_hasher();
            hasher.write(key);
            hasher.finish()
        }))
    }

    /// Loads the slots of keys into the cache. The loads run in parallel.
    pub(crate) fn prefetch(&self, digests: impl Iterator<Item = Digest>) {
        let slots = digests.map(|digest| self.slots[self.home(digest)][2]);
        std::hint::black_box(slots.fold(0, |all, slot| all ^ slot));
    }

    /// The first slot of the search for a digest.
    #[inline]
    fn home(&self, digest: Digest) -> usize {
        // The high bits choose: the product of a fraction below one and the number of slots.
        ((u128::from(digest.0[0]) * self.slots.len() as u128) >> 64) as usize
    }

    /// The slot of a digest, or the empty slot for it.
    #[inline]
    fn find(&self, digest: Digest) -> usize {
        let mut slot = self.home(digest);
        loop {
            let found = &self.slots[slot];
            if found[2] == 0 || (found[0] == digest.0[0] && found[1] == digest.0[1]) {
                return slot;
            }
            slot += 1;
            if slot == self.slots.len() {
                slot = 0;
            }
        }
    }

    /// Notes `offset`, which is larger than all before, for a key. As in Kafka, a full map refuses known
    /// keys, too, so that its end does not depend on later keys.
    #[inline]
    pub(crate) fn put(&mut self, digest: Digest, offset: i64) -> Result<(), Full> {
        if self.entries >= self.entries_max {
            return Err(Full);
        }
        let slot = self.find(digest);
        let found = &mut self.slots[slot];
        self.entries += usize::from(found[2] == 0);
        *found = [digest.0[0], digest.0[1], offset as u64 + 1];
        self.latest = offset;
        Ok(())
    }

    /// The last offset of a key.
    #[inline]
    pub(crate) fn get(&self, digest: Digest) -> Option<i64> {
        let offset = self.slots[self.find(digest)][2];
        offset.checked_sub(1).map(|offset| offset as i64)
    }

    /// Notes that every offset up to this one is in the map.
    pub(crate) fn advance(&mut self, offset: i64) {
        self.latest = self.latest.max(offset);
    }

    pub(crate) fn latest(&self) -> i64 {
        self.latest
    }

    pub(crate) fn len(&self) -> usize {
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Broken if it failed: a key's record would be dropped for another key's, or kept beside a newer one.
        #[test]
        fn it_is_a_map(keys in proptest::collection::vec(0u16..300, 0..600), slots in 1u64..400) {
            let mut map = OffsetMap::new(slots * SLOT_BYTES, 0.9, u64::MAX);
            let mut model = HashMap::new();
            for (offset, key) in keys.iter().enumerate() {
                let digest = map.digest(&key.to_be_bytes());
                if map.put(digest, offset as i64) == Err(Full) {
                    prop_assert!(model.len() + 1 >= (slots as f64 * 0.9) as usize);
                    break;
                }
                model.insert(*key, offset as i64);
                prop_assert_eq!(map.latest(), offset as i64);
            }
            prop_assert_eq!(map.len(), model.len());
            for key in 0u16..300 {
                let digest = map.digest(&key.to_be_bytes());
                prop_assert_eq!(map.get(digest), model.get(&key).copied());
            }
        }
    }

    // Broken if it failed: a cleaner would take more memory than its buffer, or as much for a quiet log as
    // for a busy one.
    #[test]
    fn memory_is_bounded_by_the_buffer_and_the_range() {
        assert_eq!(OffsetMap::new(1 << 20, 0.9, u64::MAX).slots.len(), (1 << 20) / 24);
        assert!(OffsetMap::new(1 << 30, 0.9, 1000).slots.len() < 2000);
        let small = OffsetMap::new(0, 0.9, 10);
        assert_eq!((small.slots.len(), small.entries_max), (1, 0));
        let mut whole = OffsetMap::new(1 << 30, 0.9, 1000);
        for key in 0..1000i64 {
            let digest = whole.digest(&key.to_be_bytes());
            whole.put(digest, key).unwrap();
        }
    }
}
