//! Pages that are sent as pictures, with a concurrency of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_batch::{Control, ItemState, Options};
use tidegate_loop::{run, spawn, timeout, yield_now};
use tidegate_sync::Event;

use crate::support::{Act, Bench, Seen, Server, answer, pdf};

fn is_picture(seen: &Seen) -> bool {
    seen.body["messages"][0]["content"].is_array()
}

/// Runs with small pictures, which are drawn soon.
fn options(bench: &Bench, path: &Path) -> Options {
    Options { picture_px: 100, ..bench.options(&[path.to_owned()]) }
}

/// Ten pages with nothing but a number, then four with text.
fn write_mixed(bench: &Bench) -> PathBuf {
    let pages: Vec<String> = (1..=14)
        .map(|page| match page {
            1..=10 => page.to_string(),
            _ => format!(
                "The harbour keeps a book of ships, and this is entry number {page}.\nEvery ship needs a berth."
            ),
        })
        .collect();
    let path = bench.folder.path().join("mixed.pdf");
    fs::write(&path, pdf(&pages)).unwrap();
    path
}

fn is_blocked_by_pictures(control: &Control) -> bool {
    let is_it = |state: &ItemState| matches!(state, ItemState::Blocked { limit, .. } if limit == "pictures of a file");
    control.items().iter().any(|item| is_it(&item.state))
}

#[test]
fn pictures_have_a_limit_of_their_own_and_do_not_hold_up_text() {
    run(async {
        let bench = Bench::new();
        let path = write_mixed(&bench);
        let looked = Arc::new(Event::new());
        let server = Server::start({
            let looked = Arc::clone(&looked);
            move |_, seen| if is_picture(seen) { Act::Hold(Arc::clone(&looked), "seen") } else { answer("read") }
        })
        .await;
        let mut options = options(&bench, &path);
        options.picture_concurrency = Some(2);
        let explain = bench.explain(options, &server);
        let control = explain.control();
        let running = spawn(explain.run());
        let text_is_done = async {
            while control.progress().done < 4 || !is_blocked_by_pictures(&control) {
                yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), text_is_done).await.expect("text does not wait for pictures");
        assert_eq!(server.seen().iter().filter(|seen| is_picture(seen)).count(), 2);
        looked.set();
        let report = running.await.unwrap().unwrap();
        assert_eq!((report.totals.done, report.totals.requests), (14, 14), "{report:?}");
        let row = report.limits.last().unwrap();
        assert_eq!((row.name.as_str(), row.amount), ("pictures of a file", 2));
        assert!((2..=8).contains(&row.blocked) && row.blocked_seconds > 0.0, "{row:?}");
        assert_eq!(control.progress().blocked, 0);

        // A page that was put off is asked about with its own neighbours, as it would have been in order.
        let about = |page: u32| server.seen().into_iter().find(|seen| seen.page() == page).unwrap().text;
        assert!(about(10).contains("number 11") && !about(10).contains("number 12"), "{}", about(10));
        assert!(!about(9).contains("number"), "{}", about(9));
        let again = bench.run(self::options(&bench, &path), &server).await;
        assert_eq!((again.totals.kept, again.totals.requests), (14, 0), "the same questions");
        assert_eq!(again.limits.last().unwrap().name, "pages of a file", "no limit of their own, no row");
    })
    .unwrap();
}

#[test]
fn a_stop_does_not_wait_for_pictures_without_a_slot() {
    run(async {
        let bench = Bench::new();
        let path = write_mixed(&bench);
        let server = Server::start(|_, seen| if is_picture(seen) { Act::Hang } else { answer("read") }).await;
        let mut options = options(&bench, &path);
        options.picture_concurrency = Some(1);
        let explain = bench.explain(options, &server);
        let control = explain.control();
        let running = spawn(explain.run());
        let text_is_done = async {
            while control.progress().done < 4 {
                yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), text_is_done).await.expect("text does not wait for pictures");
        control.drop_calls("enough");
        let report = timeout(Duration::from_secs(60), running).await.expect("it ends").unwrap().unwrap();
        assert_eq!((report.totals.done, report.totals.missing), (4, 10));
    })
    .unwrap();
}
