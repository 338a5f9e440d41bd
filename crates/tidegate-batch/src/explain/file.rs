//! The pages of one file: read in order, asked about through a pool and the gate, recorded as their results are on the
//! disk; then the file's outputs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_limit::Scope;
use tidegate_loop::{Either, race};
use tidegate_pdf::Document;
use tidegate_sync::{Permit, Queue, Semaphore};

use super::job::Job;
use super::page::{PageContext, Prepared, Ready, Texts};
use super::pictures::{Order, Pictures, Slots};
use super::record::{About, Outcome, What};
use crate::output::{Entry, SeenAs};
use crate::owned::OwnedTask;
use crate::provider::Asked;
use crate::run::policy::Verdict;
use crate::run::{Again, ItemHandle, ItemId, ItemScope, Wish};
use crate::store::{Kept, Promise, Record, StoreError};

/// One file of a run.
pub(super) struct FileRun {
    pub(super) job: Rc<Job>,
    pub(super) index: usize,
    pub(super) name: Rc<str>,
    /// How many of its pages may be in flight at once, by its size or as stated.
    pub(super) cap: u32,
    /// What became of its pages, until it is written.
    pub(super) entries: RefCell<BTreeMap<u32, Entry>>,
    /// Its outputs are written, and have its entries.
    pub(super) is_written: Cell<bool>,
    /// Held while its outputs are written.
    pub(super) writing: Arc<Semaphore>,
}

/// An item that is asked again. Dropped before its result is recorded, the item is as it was.
pub(super) struct Retry {
    run: Rc<FileRun>,
    page: u32,
    wish: Option<Wish>,
}

impl Retry {
    pub(super) fn new(run: &Rc<FileRun>, page: u32, wish: Wish) -> Retry {
        Retry { run: Rc::clone(run), page, wish: Some(wish) }
    }

    pub(super) fn take(mut self) -> Option<Wish> {
        self.wish.take()
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        if let Some(wish) = self.wish.take() {
            self.run.job.control.give_back(self.run.item(self.page), wish);
        }
    }
}

impl FileRun {
    pub(super) fn new(job: &Rc<Job>, index: usize, cap: u32) -> Rc<FileRun> {
        Rc::new(FileRun {
            job: Rc::clone(job),
            index,
            name: job.options.inputs[index].name().into(),
            cap,
            entries: RefCell::default(),
            is_written: Cell::new(false),
            writing: Arc::new(Semaphore::new(1)),
        })
    }

    pub(super) fn item(&self, page: u32) -> ItemId {
        ItemId::Page { file: self.index as u32, page }
    }

    pub(super) fn entry(&self, page: u32) -> Option<Entry> {
        self.entries.borrow().get(&page).cloned()
    }

    /// Explains the pages and writes the outputs. `share` goes back when the pages are done.
    pub(super) async fn explain(self: Rc<Self>, document: Document, pages: Vec<u32>, share: Permit<Arc<Semaphore>>) {
        self.ask_all(&document, &pages, BTreeMap::new()).await;
        drop(share);
        self.write(&document, &pages).await;
    }

    /// Asks about page after page, those in `wishes` again; returns when all that were asked about are recorded: all of them,
    /// unless the run is stopped.
    pub(super) async fn ask_all(self: &Rc<Self>, document: &Document, pages: &[u32], mut wishes: BTreeMap<u32, Retry>) {
        let results = Rc::new(Queue::unbounded());
        let recorder = OwnedTask::spawn({
            let (run, results) = (Rc::clone(self), Rc::clone(&results));
            async move {
                while let Ok(result) = results.recv().await {
                    run.record(result).await;
                }
            }
        });
        self.submit_all(document, pages, &mut wishes, &results).await;
        results.close();
        // It has everything already, and only waits for the disk.
        let _ = recorder.await;
    }

    /// Submits page after page; returns when the last has its result, or the run is stopped.
    async fn submit_all(
        self: &Rc<Self>,
        document: &Document,
        pages: &[u32],
        wishes: &mut BTreeMap<u32, Retry>,
        results: &Rc<Queue<Outcome>>,
    ) {
        let job = &self.job;
        let scope = job.gate.scope(&*self.name, u64::from(self.cap));
        let lane = job.lanes.open(&scope, self.cap, pages.len());
        let context = PageContext {
            prompt: &job.options.prompt,
            language: &job.options.language,
            file: &self.name,
            identity: job.provider.identity(),
            provider: &job.provider_name,
            takes_pictures: job.provider.takes_pictures(),
            picture_px: job.options.picture_px,
        };
        // Closed only when the run is being dropped.
        let deliver = |page, about, what, retry| _ = results.try_push(Outcome { page, about, what, retry });
        let mut texts = Texts::new(document, job.options.context_pages);
        let mut order = Order::new(pages);
        while let Some((page, no_picture)) = order.next(lane.pictures()) {
            if job.control.is_stopping() {
                break;
            }
            let prepared = texts.prepare(page, &context, no_picture).await;
            if matches!(prepared, Prepared::Later) {
                order.put_off(page);
                continue;
            }
            lane.prepared();
            let retry = wishes.remove(&page);
            let again = retry.as_ref().and_then(|retry| retry.wish.as_ref()).map(|wish| wish.again);
            let again = again.or_else(|| job.control.take_chosen(self.item(page)));
            let ready = match prepared {
                Prepared::Ask(ready) => ready,
                Prepared::Later => continue,
                Prepared::Skip { reason, quality, warnings } => {
                    let about = About { seen_as: None, quality: Some(quality), warnings };
                    deliver(page, about, What::Skipped { reason }, retry);
                    continue;
                }
                Prepared::Blank => {
                    deliver(page, About::default(), What::Blank, retry);
                    continue;
                }
                Prepared::Unreadable { reason } => {
                    deliver(page, About::default(), What::Failed { code: "unreadable".into(), reason }, retry);
                    continue;
                }
            };
            if self.is_kept(&ready, again) {
                let about = About { seen_as: Some(ready.seen_as), quality: ready.quality, warnings: ready.warnings };
                deliver(page, about, What::Kept(job.store.get(ready.key)), retry);
                continue;
            }
            let room = self.room_for_picture(&ready).await;
            let pictures = lane.pictures().filter(|_| ready.seen_as == SeenAs::Picture);
            let pool = pictures.map_or(lane.pool(), Pictures::pool);
            let slots = pictures.map(Pictures::slots);
            let asking = {
                let (run, scope, results) = (Rc::clone(self), scope.clone(), Rc::clone(results));
                async move {
                    let (about, what) = run.ask(scope, ready, room, slots, retry.is_some()).await;
                    let _ = results.try_push(Outcome { page, about, what, retry });
                }
            };
            let submitted = race(pool.submit(asking), job.control.calls_dropped()).await;
            match submitted {
                Either::Left(Ok(task)) => task.detach(),
                _ => break,
            }
        }
        for pool in std::iter::once(lane.pool()).chain(lane.pictures().map(Pictures::pool)) {
            if race(pool.close(), job.control.calls_dropped()).await.left().is_none() {
                pool.abort().await;
            }
        }
    }

    fn is_kept(&self, ready: &Ready, again: Option<Again>) -> bool {
        let (options, store) = (&self.job.options, &self.job.store);
        match again {
            Some(Again::Ask) => false,
            Some(Again::Reload) => store.has(&ready.key),
            None if options.fresh => false,
            None if options.retry_failed => store.has_answer(&ready.key),
            None => store.has(&ready.key),
        }
    }

    /// Pictures wait in memory for their turn: only so many bytes of them at once.
    async fn room_for_picture(&self, ready: &Ready) -> Option<Permit<Arc<Semaphore>>> {
        let picture = ready.question.picture.as_ref()?;
        let room = &self.job.pictures;
        // Base64 and the request's body are made of it.
        let kib = (picture.png.len() * 3).div_ceil(1024).clamp(1, room.capacity());
        room.acquire_many_owned(kib).await.ok()
    }

    /// Asks about a page and stores what becomes of it. One that `is_retry` has an answer perhaps, which a failure leaves alone.
    async fn ask(
        &self,
        scope: Scope,
        ready: Box<Ready>,
        room: Option<Permit<Arc<Semaphore>>>,
        pictures: Option<Slots>,
        is_retry: bool,
    ) -> (About, What) {
        let job = &self.job;
        let Ready { key, question, seen_as, quality, warnings, .. } = *ready;
        let about = About { seen_as: Some(seen_as), quality, warnings };
        let page = question.page;
        let item = ItemHandle { control: job.control.clone(), id: self.item(page), name: Rc::clone(&self.name) };
        let slot = match &pictures {
            Some(slots) => slots.acquire(&item).await,
            None => None,
        };
        // Until the answer is stored.
        let _expected = match job.store.expect_answer().await {
            Ok(expected) => expected,
            Err(error) => {
                job.control.give_up(error.to_string());
                return (about, What::Missing);
            }
        };
        let asked = job.provider.ask(&ItemScope::new(scope, item), &question).await;
        drop((question, room, slot));
        let keep = |kept: Kept, attempts: u32| {
            let record = Record { kept, source: self.name.to_string(), number: u64::from(page), attempts };
            job.store.put(key, record)
        };
        let verdict = job.policy.judge(&asked);
        let error = match asked {
            Ok(Asked { answer, attempts, .. }) => {
                let what = match self.keep_answer(|| keep(Kept::Answered(answer.clone()), attempts)).await {
                    true => What::Answered(answer),
                    false => What::Missing,
                };
                return (about, what);
            }
            Err(error) => error,
        };
        match verdict {
            Verdict::Drop => return (about, What::Missing),
            Verdict::Stop(reason) | Verdict::Hold(reason) => {
                job.control.give_up(reason);
                return (about, What::Missing);
            }
            Verdict::RecordAndStop(reason) => job.control.give_up(reason),
            Verdict::Record => {}
        }
        let reason = error.to_string();
        if error.is_lasting() && !is_retry {
            // Should this not be kept, the page is asked about again some day.
            drop(keep(Kept::Failed { code: error.code().into(), reason: reason.clone() }, 1));
        }
        (about, What::Failed { code: error.code().into(), reason })
    }

    /// Writes an answer that was paid for. If that fails, the run stops: nothing more is to be paid for that cannot be kept. The
    /// answer is then written once more in a transaction of its own, because one answer may fit where several did not. Returns
    /// `false` if that fails too: the answer is lost, and the page is asked about again by the next run.
    async fn keep_answer(&self, put: impl Fn() -> Promise<Result<(), StoreError>>) -> bool {
        let job = &self.job;
        let Err(error) = put().await else { return true };
        job.control.give_up(error.to_string());
        let _turn = job.rewrites.acquire_owned().await;
        let kept = put().await.is_ok();
        if !kept {
            job.unkept.set(job.unkept.get() + 1);
        }
        kept
    }
}
