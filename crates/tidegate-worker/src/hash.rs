//! Hashing for maps whose keys are made here, or few, or numbered by the broker. No outsider can fill them with colliding
//! keys, so the standard hasher's protection is not needed; it would cost several hashes per task.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<Quick>>;
pub(crate) type QuickSet<K> = HashSet<K, BuildHasherDefault<Quick>>;

#[derive(Default)]
pub(crate) struct Quick(u64);

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.write_u64(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        let mut rest = [0; 8];
        rest[..words.remainder().len()].copy_from_slice(words.remainder());
        self.write_u64(u64::from_le_bytes(rest));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(26) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // Tables look at the highest and at the lowest bits; a product has its mixture in the highest.
        self.0.rotate_left(32) ^ self.0
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn neighbours_part_in_both_ends_of_the_hash() {
        let build = BuildHasherDefault::<Quick>::default();
        let hashes: Vec<u64> = (0..4_096u64).map(|number| build.hash_one((7u32, number))).collect();
        let names: Vec<u64> = (0..4_096).map(|number| build.hash_one(format!("mail.send.{number}"))).collect();
        for hashes in [hashes, names] {
            let low: HashSet<u64> = hashes.iter().map(|hash| hash % 4_096).collect();
            let high: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            // Thrown by chance they would hit 63 % of the places.
            assert!(low.len() > 2_300, "{} places of 4,096", low.len());
            assert_eq!(high.len(), 128);
        }
    }
}
