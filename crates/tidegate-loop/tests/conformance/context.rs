//! Cases 52–55: context variables; and a lock, a queue and a semaphore built on settable futures as asyncio builds its
//! own, which shows that the loop gives them what they need.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::pending;
use std::rc::Rc;

use tidegate_loop::{
    Cancelled, ContextVar, ContextVars, Deferred, Duration, LoopHandle, Task, catch_cancel, spawn, yield_now,
};

use std::future::IntoFuture as _;

use crate::support::{Log, ms, run_strict, strict};

static VAR: ContextVar<u32> = ContextVar::new("var");

fn value() -> u32 {
    VAR.get().unwrap()
}

#[test]
fn c52_tasks_callbacks_and_done_callbacks_capture_the_context_when_they_are_made() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let handle = LoopHandle::current();
        // Each sees what was set when it was made, and writes something of its own.
        let see = |who: &'static str| {
            let said = said.clone();
            move || {
                said.say(format_args!("{who} {}", value()));
                VAR.set(99);
            }
        };
        let future = handle.create_future::<()>();
        let ended = spawn(async {});
        VAR.set(1);
        let in_task = see("task");
        let task = spawn(async move { in_task() });
        VAR.set(2);
        handle.call_soon(see("soon"));
        VAR.set(3);
        handle.call_later(Duration::ZERO, see("later"));
        VAR.set(4);
        let on_future = see("future's callback");
        future.add_done_callback(move |_| on_future());
        VAR.set(5);
        let on_task = see("task's callback");
        ended.task().add_done_callback(move |_| on_task());
        VAR.set(6);
        future.set_result(()).unwrap();
        task.await.unwrap();
        yield_now().await;
        said.say(format_args!("main {}", value()));
    });
    log.expect(["task 1", "soon 2", "future's callback 4", "later 3", "task's callback 5", "main 6"]);
    assert_eq!(VAR.get(), None, "nothing leaks out of the loop");
}

#[test]
fn c52_a_childs_writes_do_not_leak_out_and_neither_do_the_parents_in() {
    run_strict(async {
        VAR.set(1);
        let child = spawn(async {
            VAR.set(2);
            yield_now().await;
            yield_now().await;
            value()
        });
        yield_now().await;
        assert_eq!(value(), 1);
        VAR.set(3);
        assert_eq!(child.await.unwrap(), 2);
        let eager = LoopHandle::current().task().eager().spawn(async {
            VAR.set(4);
        });
        assert!(eager.is_finished());
        assert_eq!(value(), 3);
    });
}

/// `finally` blocks run in their task's context; here that is what destructors do.
#[test]
fn c52_a_cancelled_task_is_cleaned_up_in_its_own_context() {
    struct OnDrop(Log, &'static str);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.say(format_args!("{} {:?} in {}", self.1, VAR.get(), Task::current().name()));
        }
    }
    let log = Log::new();
    let event_loop = strict();
    for (name, number) in [("before its first step", 1), ("at an await", 2), ("when the loop closes", 3)] {
        ContextVars::current().run(|| {
            VAR.set(number);
            let guard = OnDrop(log.clone(), name);
            let body = async move {
                let _guard = guard;
                pending::<()>().await;
            };
            let task = event_loop.task().name(format!("T{number}")).spawn(body);
            if number == 2 {
                event_loop.run_until_idle().unwrap();
            }
            if number != 3 {
                task.cancel();
                event_loop.run_until_idle().unwrap();
            }
        });
    }
    let given = ContextVars::current();
    given.run(|| VAR.set(4));
    let guard = OnDrop(log.clone(), "in a context it was given");
    let body = async move {
        let _guard = guard;
        pending::<()>().await;
    };
    let task = event_loop.task().name("T4").context(&given).spawn(body);
    event_loop.run_until_idle().unwrap();
    task.cancel();
    event_loop.run_until_idle().unwrap();
    event_loop.close().unwrap();
    log.expect([
        "before its first step Some(1) in T1",
        "at an await Some(2) in T2",
        "in a context it was given Some(4) in T4",
        "when the loop closes Some(3) in T3",
    ]);
}

#[test]
fn c52_a_context_answers_for_itself_while_another_is_entered_inside_it() {
    let outer = ContextVars::current();
    outer.run(|| {
        VAR.set(1);
        let inner = ContextVars::current();
        inner.run(|| {
            VAR.set(2);
            assert_eq!((outer.get(&VAR), inner.get(&VAR)), (Some(1), Some(2)));
        });
    });
    assert_eq!(outer.get(&VAR), Some(1));
}

#[test]
fn c52_a_task_given_a_context_writes_into_it() {
    run_strict(async {
        let context = ContextVars::current();
        let child = LoopHandle::current().task().context(&context).spawn(async {
            VAR.set(5);
            yield_now().await;
            value()
        });
        assert_eq!(child.await.unwrap(), 5);
        assert_eq!((context.get(&VAR), VAR.get()), (Some(5), None));
    });
}

#[test]
fn c52_a_step_taken_inside_an_entered_context_is_in_the_tasks_own() {
    run_strict(async {
        VAR.set(1);
        let entered = ContextVars::current();
        let child = entered.run(|| {
            VAR.set(2);
            let child = LoopHandle::current().task().eager().spawn(async {
                let inherited = value();
                VAR.set(3);
                yield_now().await;
                (inherited, value())
            });
            assert_eq!(value(), 2, "the step is over, and the entered context is the running one again");
            child
        });
        assert_eq!((value(), entered.get(&VAR)), (1, Some(2)));
        assert_eq!(child.await.unwrap(), (2, 3));
    });
}

type Waiters = RefCell<VecDeque<(u64, Deferred<()>)>>;

/// A place in line, numbered because futures have no identity of their own.
fn join_line(line: &Waiters, next: &Cell<u64>) -> (u64, Deferred<()>) {
    let place = (next.replace(next.get() + 1), LoopHandle::current().create_future());
    line.borrow_mut().push_back(place.clone());
    place
}

fn leave_line(line: &Waiters, number: u64) {
    line.borrow_mut().retain(|(known, _)| *known != number);
}

/// Sets the first that is not done; false if there is none.
fn wake_first(line: &Waiters) -> bool {
    let first = line.borrow().iter().find(|(_, waiter)| !waiter.is_done()).cloned();
    first.is_some_and(|(_, waiter)| waiter.set_result(()).is_ok())
}

/// `asyncio.Lock`.
#[derive(Default)]
struct Lock {
    locked: Cell<bool>,
    line: Waiters,
    next: Cell<u64>,
}

impl Lock {
    async fn acquire(&self) {
        if !self.locked.get() && self.line.borrow().iter().all(|(_, waiter)| waiter.is_cancelled()) {
            self.locked.set(true);
            return;
        }
        let (number, waiter) = join_line(&self.line, &self.next);
        let waited = catch_cancel(waiter.into_future()).await;
        leave_line(&self.line, number);
        match waited {
            Ok(_) => self.locked.set(true),
            Err(cancelled) => {
                if !self.locked.get() {
                    wake_first(&self.line);
                }
                cancelled.propagate().await;
            }
        }
    }

    fn release(&self) {
        assert!(self.locked.replace(false));
        wake_first(&self.line);
    }
}

#[test]
fn c53_a_locks_waiters_are_served_first_come_first_served() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let lock = Rc::new(Lock::default());
        lock.acquire().await;
        let tasks = ["a", "b", "c", "d"].map(|name| {
            let (lock, said) = (lock.clone(), said.clone());
            spawn(async move {
                lock.acquire().await;
                said.say(name);
                yield_now().await;
                lock.release();
            })
        });
        yield_now().await;
        // One that was woken already is cancelled: the next in line gets the lock, and no other task overtakes.
        lock.release();
        tasks[0].cancel();
        let newcomer = {
            let (lock, said) = (lock.clone(), said.clone());
            spawn(async move {
                lock.acquire().await;
                said.say("newcomer");
                lock.release();
            })
        };
        newcomer.await.unwrap();
        assert!(!lock.locked.get() && lock.line.borrow().is_empty());
    });
    log.expect(["b", "c", "d", "newcomer"]);
}

/// `asyncio.Queue` without a bound.
#[derive(Default)]
struct Queue {
    items: RefCell<VecDeque<u32>>,
    getters: Waiters,
    next: Cell<u64>,
}

impl Queue {
    fn put(&self, item: u32) {
        self.items.borrow_mut().push_back(item);
        self.wake_next();
    }

    fn wake_next(&self) {
        let mut getters = std::iter::from_fn(|| self.getters.borrow_mut().pop_front());
        if let Some((_, getter)) = getters.find(|(_, getter)| !getter.is_done()) {
            getter.set_result(()).unwrap();
        }
    }

    async fn get(&self) -> u32 {
        loop {
            let item = self.items.borrow_mut().pop_front();
            if let Some(item) = item {
                return item;
            }
            let (number, getter) = join_line(&self.getters, &self.next);
            if let Err(cancelled) = catch_cancel(getter.clone().into_future()).await {
                getter.cancel();
                leave_line(&self.getters, number);
                if !self.items.borrow().is_empty() && !getter.is_cancelled() {
                    self.wake_next();
                }
                cancelled.propagate().await;
            }
        }
    }
}

#[test]
fn c54_the_item_of_a_getter_cancelled_after_its_wake_up_goes_to_the_next() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let queue = Rc::new(Queue::default());
        let getters = ["a", "b", "c"].map(|name| {
            let (queue, said) = (queue.clone(), said.clone());
            spawn(async move { said.tick(format_args!("{name} got {}", queue.get().await)) })
        });
        yield_now().await;
        queue.put(7);
        getters[0].cancel();
        let [a, b, c] = getters;
        assert!(a.await.is_err());
        b.await.unwrap();
        queue.put(8);
        c.await.unwrap();
    });
    // 2: put and cancel, 3: a passes it on, 4: b.
    log.expect(["4 b got 7", "5 c got 8"]);
}

/// `asyncio.Semaphore`.
struct Semaphore {
    free: Cell<u32>,
    line: Waiters,
    next: Cell<u64>,
}

impl Semaphore {
    fn new(free: u32) -> Rc<Semaphore> {
        Rc::new(Semaphore { free: Cell::new(free), line: Waiters::default(), next: Cell::new(0) })
    }

    async fn acquire(&self) {
        let waits = self.free.get() == 0 || self.line.borrow().iter().any(|(_, waiter)| !waiter.is_cancelled());
        if !waits {
            self.free.set(self.free.get() - 1);
            return;
        }
        let (number, waiter) = join_line(&self.line, &self.next);
        let waited = catch_cancel(waiter.clone().into_future()).await;
        leave_line(&self.line, number);
        if waited.is_err() && waiter.is_done() && !waiter.is_cancelled() {
            self.free.set(self.free.get() + 1);
        }
        while self.free.get() > 0 && self.wake_next() {}
        if let Err(cancelled @ Cancelled) = waited {
            cancelled.propagate().await;
        }
    }

    fn release(&self) {
        self.free.set(self.free.get() + 1);
        self.wake_next();
    }

    fn wake_next(&self) -> bool {
        let woken = wake_first(&self.line);
        if woken {
            self.free.set(self.free.get() - 1);
        }
        woken
    }
}

#[test]
fn c55_the_permit_of_a_waiter_cancelled_after_the_release_goes_to_the_next() {
    let log = Log::new();
    let said = log.clone();
    run_strict(async move {
        let semaphore = Semaphore::new(1);
        semaphore.acquire().await;
        let waiters = ["a", "b"].map(|name| {
            let (semaphore, said) = (semaphore.clone(), said.clone());
            spawn(async move {
                semaphore.acquire().await;
                said.tick(name);
            })
        });
        yield_now().await;
        semaphore.release();
        waiters[0].cancel();
        let [a, b] = waiters;
        assert!(a.await.is_err());
        b.await.unwrap();
        assert_eq!((semaphore.free.get(), semaphore.line.borrow().len()), (0, 0), "b has the one permit there is");
        semaphore.release();
        tidegate_loop::timeout(ms(1), async { semaphore.acquire().await }).await.unwrap();
    });
    log.expect(["4 b"]);
}
