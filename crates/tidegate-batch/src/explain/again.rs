//! Pages asked again while the run goes on: their file is opened once more, and written once more if it was.

use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate_loop::to_thread;

use super::file::{FileRun, Retry};
use super::job::Job;
use crate::output::Explanations;
use crate::outputs;
use crate::run::{Change, ItemId};

impl Job {
    /// Asks again about the pages that are wished for, file by file. Never ends.
    pub(super) async fn serve_again(self: Rc<Self>) {
        loop {
            self.control.again_asked().await;
            self.asks_again.set(true);
            let mut files: BTreeMap<u32, BTreeMap<u32, Retry>> = BTreeMap::new();
            for (item, wish) in self.control.take_all_again() {
                let ItemId::Page { file, page } = item else { continue };
                let run = self.files.borrow().get(file as usize).cloned().flatten();
                match run {
                    Some(run) => drop(files.entry(file).or_default().insert(page, Retry::new(&run, page, wish))),
                    None => self.control.give_back(item, wish),
                }
            }
            for (file, pages) in files {
                let run = self.files.borrow().get(file as usize).cloned().flatten();
                if let Some(run) = run.filter(|_| !self.control.is_stopping()) {
                    run.ask_again(pages).await;
                }
            }
            self.asks_again.set(false);
            self.asked_again.notify_all();
        }
    }

    /// Waits until there is nothing to be asked again.
    pub(super) async fn again_is_done(&self) {
        while self.asks_again.get() || (self.control.has_again() && !self.control.is_stopping()) {
            let _ = self.asked_again.wait().await;
        }
    }
}

impl FileRun {
    async fn ask_again(self: &Rc<Self>, wishes: BTreeMap<u32, Retry>) {
        let job = &self.job;
        let input = &job.options.inputs[self.index];
        let document = match input.reader(&job.reader).open(&input.path).await {
            Ok(document) => document,
            Err(error) => {
                for page in wishes.keys() {
                    let (item, name, code) = (self.item(*page), Rc::clone(&self.name), "unreadable".to_owned());
                    job.control.emit(Change::RetryFailed { item, name, code, reason: error.to_string() });
                }
                // Each is as it was when its wish is dropped.
                return;
            }
        };
        let pages: Vec<u32> = wishes.keys().copied().collect();
        self.ask_all(&document, &pages, wishes).await;
        // A file that is being written has its outputs then, without these pages perhaps. One whose pages are still asked about is
        // written later.
        drop(self.writing.acquire().await);
        if self.is_written.get() && self.read_back().await {
            self.write(&document, &job.options.selection.of(document.page_count())).await;
        }
    }

    /// Takes the entries that are not here from the file's JSON. Returns `false` if it cannot be read: then it is left alone.
    async fn read_back(&self) -> bool {
        let input = &self.job.options.inputs[self.index];
        let [json, ..] = outputs::paths(&self.job.options.out, &input.stem);
        let read = to_thread(move || Explanations::read(&std::fs::read(json).ok()?).ok()).await;
        let Ok(Some(written)) = read else { return false };
        let mut entries = self.entries.borrow_mut();
        for entry in written.explanations {
            entries.entry(entry.page).or_insert(entry);
        }
        true
    }
}
