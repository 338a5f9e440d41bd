//! Cron expressions and schedules.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_worker::fuzzing::cron(data));
