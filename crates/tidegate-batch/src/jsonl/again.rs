//! Requests asked again while the run goes on: their lines are read once more.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use tidegate_loop::to_thread;

use super::Input;
use super::line::RequestLine;
use super::run::Run;
use crate::run::{Change, ItemId, Wish};

impl Run {
    /// Asks again about the requests that are wished for. Never ends.
    pub(super) async fn serve_again(self: Rc<Self>) {
        loop {
            self.control.again_asked().await;
            self.asks_again.set(true);
            let mut wishes: BTreeMap<u64, Wish> = BTreeMap::new();
            for (item, wish) in self.control.take_all_again() {
                let ItemId::Request { line } = item else { continue };
                self.failed.borrow_mut().remove(&line);
                wishes.insert(line, wish);
            }
            let (input, lines) = (self.input.clone(), wishes.keys().copied().collect::<Vec<_>>());
            let read = to_thread(move || read_lines(&input, &lines)).await;
            let read = read.unwrap_or_else(|error| Err(io::Error::other(error.to_string())));
            let unreadable = match read {
                Ok(requests) => {
                    for (line, request) in requests {
                        let Some(wish) = wishes.remove(&line) else { continue };
                        self.submit(line, request, Some(wish)).await;
                    }
                    "the line is not in the file any more".to_owned()
                }
                Err(error) => error.to_string(),
            };
            for (line, wish) in wishes {
                let (item, name) = (ItemId::Request { line }, Rc::clone(&wish.name));
                let (code, reason) = ("unreadable".to_owned(), unreadable.clone());
                self.control.emit(Change::RetryFailed { item, name, code, reason });
                self.control.give_back(item, wish);
            }
            self.asks_again.set(false);
            self.idle.notify_all();
        }
    }
}

/// The requests in these lines, which rise.
fn read_lines(input: &Input, wanted: &[u64]) -> io::Result<Vec<(u64, RequestLine)>> {
    let (mut lines, mut found) = (input.open()?, Vec::new());
    let mut wanted = wanted.iter().copied().peekable();
    while wanted.peek().is_some()
        && let Some(next) = lines.next_request()?
    {
        let Ok((line, request)) = next else { continue };
        while wanted.next_if(|wanted| *wanted < line).is_some() {}
        if wanted.next_if_eq(&line).is_some() {
            found.push((line, request));
        }
    }
    Ok(found)
}
