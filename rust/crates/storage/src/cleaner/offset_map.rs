//! From a key's digest to the last offset that was written under it, in bounded memory (`SkimpyOffsetMap`).
//!
//! One flat table of 24-byte slots, probed linearly: a digest of 128 bits and the offset. Keys are not kept, so two keys of
//! one digest would be taken for one, and the older record would be lost. Kafka's MD5 leaves that to chance and to the
//! goodwill of whoever chooses keys. Here the digest is SipHash-1-3 of the standard library under two random keys, new for
//! each map: as unlikely to meet by chance (128 bits), not to be made to meet on purpose, several times as fast on short
//! keys, and no dependency. Nothing of it reaches the disk.
//!
//! The table is as large as the buffer allows, but no larger than the range of offsets to be mapped can fill. Its pages
//! come from the system zeroed when first touched. A probe is a miss in every cache there is, so keys are looked up by the
//! batch: first the slots of all are touched, one beside the other, then each is searched. Used by one cleaner thread; a crash leaves nothing.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Bytes of a slot, as in Kafka: a digest of 16 and an offset of 8.
const SLOT_BYTES: u64 = 24;
/// Slots for each offset of a range: few enough collisions, and half as much memory again as the entries.
const SLOTS_PER_OFFSET: f64 = 1.5;

/// What stands for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest([u64; 2]);

#[derive(Debug)]
pub(crate) struct OffsetMap {
    /// Digest, and the offset plus one; zero there is an empty slot.
    slots: Vec<[u64; 3]>,
    entries: usize,
    entries_max: usize,
    /// The last offset up to which the map is complete.
    latest: i64,
    hashers: [RandomState; 2],
}

/// The map takes no new key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// How many entries a buffer of `bytes` takes when it is filled to `load_factor`.
pub(crate) fn capacity(bytes: u64, load_factor: f64) -> usize {
    ((bytes / SLOT_BYTES) as f64 * load_factor) as usize
}

impl OffsetMap {
    /// A map in at most `bytes` of memory for a range of `span` offsets, filled to `load_factor` at most.
    pub(crate) fn new(bytes: u64, load_factor: f64, span: u64) -> Self {
        let most = bytes / SLOT_BYTES;
        let needed = ((span as f64 * SLOTS_PER_OFFSET) as u64).saturating_add(8);
        let slots = usize::try_from(most.min(needed).max(1)).unwrap_or(usize::MAX);
        Self {
            slots: vec![[0; 3]; slots],
            entries: 0,
            // One slot stays empty, so that every search ends.
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

    /// Brings the slots of keys near, all at once: the loads do not wait for each other.
    pub(crate) fn touch(&self, digests: impl Iterator<Item = Digest>) {
        let slots = digests.map(|digest| self.slots[self.home(digest)][2]);
        std::hint::black_box(slots.fold(0, |all, slot| all ^ slot));
    }

    /// Where the search for a digest begins.
    #[inline]
    fn home(&self, digest: Digest) -> usize {
        // The high bits choose: the product of a 64-bit number below one and the count of slots.
        ((u128::from(digest.0[0]) * self.slots.len() as u128) >> 64) as usize
    }

    /// The slot of a digest, or the empty one where it would be.
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

    /// Notes `offset`, which is larger than all before, for a key. As in Kafka, a full map takes no known key either, so
    /// that where it ended does not depend on the keys that follow.
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

    /// The last offset noted for a key.
    #[inline]
    pub(crate) fn get(&self, digest: Digest) -> Option<i64> {
        let offset = self.slots[self.find(digest)][2];
        offset.checked_sub(1).map(|offset| offset as i64)
    }

    /// Every offset up to this one has been taken in.
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

    // Broken if it failed: a cleaner with a small buffer would take more memory than it was given, or a quiet log as much
    // as a busy one.
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
