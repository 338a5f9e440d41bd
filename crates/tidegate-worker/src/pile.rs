//! What waits to be taken whole, by one who keeps the memory for the next time.

use std::cell::{Cell, RefCell};
use std::fmt;

use tidegate_sync::Event;

/// An unbounded queue of one loop with one taker. Taken, it goes on with the memory of what was taken before: a queue that
/// starts anew each time grows step by step each time, and what is in it is moved at each.
pub(crate) struct Pile<T> {
    items: RefCell<Vec<T>>,
    closed: Cell<bool>,
    /// Set while there is something, and from the end on.
    there: Event,
}

impl<T> Default for Pile<T> {
    fn default() -> Pile<T> {
        Pile { items: RefCell::default(), closed: Cell::new(false), there: Event::new() }
    }
}

impl<T> Pile<T> {
    /// Adds to it; closed, it gives the item back.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        if self.closed.get() {
            return Err(item);
        }
        let mut items = self.items.borrow_mut();
        items.push(item);
        let first = items.len() == 1;
        drop(items);
        if first {
            self.there.set();
        }
        Ok(())
    }

    /// Waits for something, then exchanges all of it for `into`, which is empty. `false`: there will be nothing more.
    ///
    /// # Cancel safety
    /// Nothing is taken before it is ready.
    pub(crate) async fn take(&self, into: &mut Vec<T>) -> bool {
        debug_assert!(into.is_empty());
        loop {
            if !self.items.borrow().is_empty() {
                std::mem::swap(&mut *self.items.borrow_mut(), into);
                if !self.closed.get() {
                    self.there.clear();
                }
                return true;
            }
            if self.closed.get() {
                return false;
            }
            self.there.wait().await;
        }
    }

    /// Takes no more; what is there can still be taken.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.there.set();
    }
}

impl<T> fmt::Debug for Pile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pile").field("len", &self.items.borrow().len()).field("closed", &self.closed).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tidegate_loop::{run, spawn, yield_now};

    use super::Pile;

    #[test]
    fn who_waits_gets_all_there_is_and_the_end_behind_it() {
        run(async {
            let pile = Rc::new(Pile::default());
            let taking = spawn({
                let pile = Rc::clone(&pile);
                async move {
                    let (mut taken, mut all) = (Vec::new(), Vec::new());
                    while pile.take(&mut taken).await {
                        all.push(std::mem::take(&mut taken));
                    }
                    all
                }
            });
            yield_now().await;
            (1..=3).for_each(|item| pile.push(item).unwrap());
            yield_now().await;
            yield_now().await;
            pile.push(4).unwrap();
            pile.close();
            assert_eq!(pile.push(5), Err(5));
            assert_eq!(taking.await.unwrap(), [vec![1, 2, 3], vec![4]]);
        })
        .unwrap();
    }
}
