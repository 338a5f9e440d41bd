//! Messages of Celery's producers.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_worker::fuzzing::celery(data));
