//! Patterns of Celery's remote control.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_worker::fuzzing::glob(data));
