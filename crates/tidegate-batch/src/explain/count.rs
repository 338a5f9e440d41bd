//! Counts the pages of files before their turn, so that totals and the time left are known from the beginning.

use std::rc::Rc;

use super::job::Job;

impl Job {
    /// Opens each file that is not open yet, one at a time, and counts its chosen pages. A file that cannot be opened
    /// counts as none: the run reports it in its turn. A run that is stopped goes on counting until its requests are answered.
    pub(super) async fn count_pages(self: Rc<Self>) {
        for (index, input) in self.options.inputs.iter().enumerate() {
            if self.control.is_counted(index) {
                continue;
            }
            let pages = match input.reader(&self.reader).open(&input.path).await {
                Ok(document) => self.options.selection.of(document.page_count()),
                Err(_) => Vec::new(),
            };
            // Its turn may have come meanwhile: then this is known.
            self.control.count_pages(index, &pages);
        }
    }
}
