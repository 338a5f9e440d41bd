//! Files of requests and of results.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_batch::jsonl::fuzzing::lines(data));
