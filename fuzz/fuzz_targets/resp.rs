//! Replies of a Redis that means harm.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_redis::fuzzing::replies(data));
