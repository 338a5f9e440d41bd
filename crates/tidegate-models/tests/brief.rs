//! The lock under the primitives: it excludes, and every thread gets it.

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
        let thread = thread::spawn(move || other.enter().reach(|count| *count += 1));
        count.enter().reach(|count| *count += 1);
        thread.join().unwrap();
        assert_eq!(count.enter().reach(|count| *count), 2);
    });
}

#[test]
fn trying_never_waits_and_never_shares() {
    check(|| {
        let count = Arc::new(Brief::new(0));
        let other = Arc::clone(&count);
        let thread = thread::spawn(move || try_to_count(&other));
        let mine = try_to_count(&count);
        let theirs = thread.join().unwrap();
        assert!(mine || theirs);
        assert_eq!(count.enter().reach(|count| *count), i32::from(mine) + i32::from(theirs));
    });
}

#[test]
fn no_other_section_runs_between_two_sections_of_one_guard() {
    check(|| {
        let count = Arc::new(Brief::new(0));
        let other = Arc::clone(&count);
        let thread = thread::spawn(move || other.enter().reach(|count| *count += 1));
        let mut inside = count.enter();
        let found = inside.reach(|count| *count);
        assert_eq!(inside.reach(|count| std::mem::replace(count, 2 * found + 1)), found);
        drop(inside);
        thread.join().unwrap();
        assert!([2, 3].contains(&count.enter().reach(|count| *count)));
    });
}

fn try_to_count(count: &Brief<i32>) -> bool {
    count.try_enter().map(|mut inside| inside.reach(|count| *count += 1)).is_some()
}
