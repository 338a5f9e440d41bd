//! What is kept.

use tidegate_batch::{Answer, Finish, Kept, Key, Record, Store, Usage};
use tidegate_loop::run;

fn record(number: u64) -> Record {
    let usage = Usage { input_tokens: number, output_tokens: 1 };
    let answer = Answer { text: format!("Answer {number}."), usage, finish: Finish::Complete, model: None };
    Record { kept: Kept::Answered(answer), source: "a.pdf".into(), number, attempts: 1 }
}

fn key(number: u64) -> Key {
    Key::of([number.to_le_bytes().as_slice()])
}

#[test]
fn many_results_at_once_take_few_syncs_and_all_of_them_are_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.db");
    run({
        let path = path.clone();
        async move {
            let store = Store::open(&path).unwrap();
            let promises: Vec<_> = (0..1_000).map(|number| store.put(key(number), record(number))).collect();
            for promise in promises {
                promise.await.unwrap();
            }
            let stats = store.stats();
            assert_eq!((stats.results, stats.written), (1_000, 1_000));
            assert!(stats.commits < 200, "{} syncs for 1,000 results", stats.commits);
        }
    })
    .unwrap();
    run(async move {
        let store = Store::open(&path).unwrap();
        for number in 0..1_000 {
            assert!(store.has_answer(&key(number)));
            assert_eq!(store.get(key(number)).await.unwrap(), Some(record(number).kept));
        }
        assert!(!store.has(&key(1_000)));
    })
    .unwrap();
}

#[test]
fn a_result_is_read_as_it_was_last_written_though_nobody_waited_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.db");
    run({
        let path = path.clone();
        async move {
            let store = Store::open(&path).unwrap();
            drop(store.put(key(1), record(1)));
            drop(store.put(key(1), record(2)));
            assert_eq!(store.get(key(1)).await.unwrap(), Some(record(2).kept));
            drop(store.put(key(3), record(3)));
            // The store writes what it was given before it goes.
        }
    })
    .unwrap();
    assert!(Store::open(&path).unwrap().has_answer(&key(3)));
}
