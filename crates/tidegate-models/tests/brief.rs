//! The lock under the primitives: one at a time, and everybody gets in.

mod support;

use std::sync::Arc;

use loom::thread;
use support::check;
use tidegate_models::primitives::brief::Brief;

#[test]
fn sections_exclude_each_other_and_see_what_the_last_one_did() {
    check(|| {
        let count = Arc::new(Brief::new(0));
        let other = Arc::clone(&count);
        let thread = thread::spawn(move || other.with(|count| *count += 1));
        count.with(|count| *count += 1);
        thread.join().unwrap();
        assert_eq!(count.with(|count| *count), 2);
    });
}

#[test]
fn trying_never_waits_and_never_shares() {
    check(|| {
        let count = Arc::new(Brief::new(0));
        let other = Arc::clone(&count);
        let thread = thread::spawn(move || other.try_with(|count| *count += 1).is_some());
        let mine = count.try_with(|count| *count += 1).is_some();
        let theirs = thread.join().unwrap();
        assert!(mine || theirs);
        assert_eq!(count.with(|count| *count), i32::from(mine) + i32::from(theirs));
    });
}
