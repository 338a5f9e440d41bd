//! What a worker process sends to its worker.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_worker::fuzzing::frames(data));
