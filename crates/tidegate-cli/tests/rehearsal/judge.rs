//! The judge of what depends on how promptly processes get a core.

use std::time::{Duration, Instant};

use crate::machine::{Look, judge, longest_wait, waited};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn what_the_kernel_says_about_waiting_is_read() {
    let pressure = "some avg10=25.56 avg60=19.12 avg300=8.57 total=40425998\nfull avg10=0.00 total=7\n";
    assert_eq!(waited(pressure), Duration::from_micros(40_425_998));
    assert_eq!(waited(""), Duration::ZERO);
}

#[test]
fn the_longest_wait_is_that_of_the_worst_stretch() {
    let start = Instant::now();
    let looks = |all: &[(u64, u64)]| -> Vec<Look> { all.iter().map(|&(at, by)| (start + ms(at), ms(by))).collect() };
    let quiet = looks(&[(0, 0), (5, 0), (10, 1), (15, 1)]);
    assert_eq!(longest_wait(&quiet, ms(20)), ms(1));
    let busy = looks(&[(0, 0), (5, 4), (10, 8), (15, 12), (20, 16), (25, 16)]);
    assert_eq!(longest_wait(&busy, ms(10)), ms(8));
    let away = looks(&[(0, 0), (105, 0), (110, 0)]);
    assert_eq!(longest_wait(&away, ms(20)), ms(100));
}

#[test]
fn a_bad_verdict_on_a_quiet_machine_stands() {
    let away = std::panic::catch_unwind(|| judge(Duration::MAX / 4, || Err("one was refused".to_owned())));
    assert!(away.unwrap_err().downcast_ref::<String>().unwrap().contains("one was refused"));
    judge(Duration::ZERO, || Ok(()));
}
