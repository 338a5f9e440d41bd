//! Connections kept for the next request.
//!
//! A host's gate holds as many permits as there may be connections, and every connection that is open is either covered by
//! a permit (in use, or being made) or idle. A new one is made only by the holder of a permit who found none idle, so
//! permits held and idle ones together never exceed the gate. The gate is first come, first served, and a request that is
//! dropped while it waits leaves no trace in it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use hyper::client::conn::http1::SendRequest;
use tidegate_loop::{LoopHandle, TimerHandle, spawn};
use tidegate_sync::{OwnedPermit, Semaphore};

use super::drive::Drive;
use super::link::Meter;
use super::target::Target;
use crate::body::Body;
use crate::limit::{now, until};

/// How long a connection may take to become ready again after its response has been read. It is ready at once unless
/// something is amiss.
const READY_AGAIN_MAX: Duration = Duration::from_secs(1);

/// A connection that is idle for this long is watched, so that its end is noticed. Most are taken again before.
const WATCHED_AFTER: Duration = Duration::from_millis(20);

/// What connections can be used for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) target: Target,
    /// The proxy in between.
    pub(crate) proxy: Option<String>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolLimits {
    pub(crate) per_host: usize,
    pub(crate) idle_per_host: usize,
    pub(crate) idle_timeout: Duration,
}

/// A client's connections at one instant.
///
/// ```
/// let stats = tidegate_http::Client::new().stats();
/// assert_eq!((stats.open, stats.waiting, stats.total), (0, 0, 0));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Connections there are: idle, in use, or being made.
    pub open: usize,
    /// Kept for the next request.
    pub idle: usize,
    /// In use by a request or its response's body, or being made for one.
    pub in_use: usize,
    /// Requests waiting for a connection, because their host has as many as it may.
    pub waiting: usize,
    /// Connections made so far.
    pub total: u64,
    /// Requests so far that were sent on a connection that had served another before.
    pub reused: u64,
}

pub(crate) struct Pool {
    limits: PoolLimits,
    hosts: RefCell<HashMap<Rc<Key>, Host>>,
    /// When the idle ones will be looked through, if that is arranged.
    reaper: RefCell<Option<(Instant, TimerHandle)>>,
    /// When those will be watched that are still idle then, if that is arranged.
    rounds: RefCell<Option<(Instant, TimerHandle)>>,
    serial: Cell<u64>,
    total: Cell<u64>,
    reused: Cell<u64>,
}

struct Host {
    gate: Arc<Semaphore>,
    /// Most recently used last; that one is taken first, so that the surplus of a rush grows old.
    idle: VecDeque<Idle>,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

/// A connection on which one request at a time can be sent.
pub(crate) struct Connection {
    id: u64,
    pub(crate) sender: SendRequest<Body>,
    pub(crate) meter: Rc<Meter>,
    /// Reads and writes, for whoever polls it.
    pub(crate) drive: Rc<Drive>,
}

impl Pool {
    pub(crate) fn new(limits: PoolLimits) -> Rc<Pool> {
        Rc::new(Pool {
            limits,
            hosts: RefCell::default(),
            reaper: RefCell::default(),
            rounds: RefCell::default(),
            serial: Cell::new(0),
            total: Cell::new(0),
            reused: Cell::new(0),
        })
    }

    /// Waits for the right to one connection to `key`.
    ///
    /// # Cancel safety
    /// Safe: one that leaves the line passes its turn on.
    pub(crate) async fn admit(self: &Rc<Self>, key: &Rc<Key>) -> Turn {
        // Before the gate: locals go in reverse, and the host is tidied by the last to leave.
        let tidy = Tidy { pool: Rc::downgrade(self), key: key.clone() };
        let gate = {
            let mut hosts = self.hosts.borrow_mut();
            let host = hosts.entry(key.clone()).or_insert_with(|| Host {
                gate: Arc::new(Semaphore::new(self.limits.per_host)),
                idle: VecDeque::new(),
            });
            host.gate.clone()
        };
        let permit = gate.acquire_owned().await.expect("the gate is never closed");
        Turn { pool: self.clone(), key: key.clone(), _permit: permit, _tidy: tidy }
    }

    fn take_idle(&self, key: &Key) -> Option<Connection> {
        loop {
            let idle = self.hosts.borrow_mut().get_mut(key)?.idle.pop_back()?;
            let fresh = now().saturating_duration_since(idle.since) < self.limits.idle_timeout;
            if fresh && idle.connection.sender.is_ready() {
                idle.connection.drive.set_used(true);
                return Some(idle.connection);
            }
            drop(idle);
        }
    }

    fn put_idle(self: &Rc<Self>, key: &Rc<Key>, connection: Connection) {
        connection.drive.set_used(false);
        let mut surplus = None;
        if let Some(host) = self.hosts.borrow_mut().get_mut(key) {
            host.idle.push_back(Idle { connection, since: now() });
            if host.idle.len() > self.limits.idle_per_host {
                surplus = host.idle.pop_front();
            }
        }
        drop(surplus);
        self.arrange_reaping(now() + self.limits.idle_timeout);
        self.arrange_round();
    }

    fn arrange_round(self: &Rc<Self>) {
        let Some(handle) = LoopHandle::try_current() else { return };
        let mut rounds = self.rounds.borrow_mut();
        // One in the past belongs to a loop that is gone.
        if rounds.as_ref().is_some_and(|(at, _)| *at > handle.time()) {
            return;
        }
        let (when, pool) = (handle.time() + WATCHED_AFTER, Rc::downgrade(self));
        let timer = handle.call_at(when, move || {
            if let Some(pool) = pool.upgrade() {
                pool.make_round();
            }
        });
        if let Some((_, old)) = rounds.replace((when, timer)) {
            old.cancel();
        }
    }

    /// Has those watched that are idle for long enough.
    fn make_round(self: &Rc<Self>) {
        *self.rounds.borrow_mut() = None;
        let now = now();
        let (mut due, mut young) = (Vec::new(), false);
        for (key, host) in &*self.hosts.borrow() {
            for idle in host.idle.iter().filter(|idle| !idle.connection.drive.is_watched()) {
                match now.saturating_duration_since(idle.since) < WATCHED_AFTER {
                    true => young = true,
                    false => due.push((Rc::clone(key), idle.connection.id, Rc::clone(&idle.connection.drive))),
                }
            }
        }
        for (key, id, drive) in due {
            let (pool, host) = (Rc::downgrade(self), Rc::clone(&key));
            drive.watch(
                || format!("http to {}", key.target.address()),
                move || {
                    if let Some(pool) = pool.upgrade() {
                        pool.forget(&host, id);
                    }
                },
            );
        }
        if young {
            self.arrange_round();
        }
    }

    /// A connection that ended while it was idle.
    fn forget(&self, key: &Key, id: u64) {
        let gone = self.hosts.borrow_mut().get_mut(key).and_then(|host| {
            let at = host.idle.iter().position(|idle| idle.connection.id == id)?;
            host.idle.remove(at)
        });
        drop(gone);
        self.tidy(key);
    }

    /// One timer for all idle connections, and none when there are none.
    fn arrange_reaping(self: &Rc<Self>, when: Instant) {
        let Some(handle) = LoopHandle::try_current() else { return };
        let mut reaper = self.reaper.borrow_mut();
        // One in the past belongs to a loop that is gone.
        if reaper.as_ref().is_some_and(|(at, _)| *at <= when && *at > handle.time()) {
            return;
        }
        let pool = Rc::downgrade(self);
        let timer = handle.call_at(when, move || {
            if let Some(pool) = pool.upgrade() {
                pool.reap();
            }
        });
        if let Some((_, old)) = reaper.replace((when, timer)) {
            old.cancel();
        }
    }

    fn reap(self: &Rc<Self>) {
        *self.reaper.borrow_mut() = None;
        let now = now();
        let mut old = Vec::new();
        let mut oldest = None;
        self.hosts.borrow_mut().retain(|_, host| {
            while let Some(first) = host.idle.front() {
                let due = first.since + self.limits.idle_timeout;
                if due > now {
                    oldest = Some(oldest.map_or(due, |oldest: Instant| oldest.min(due)));
                    break;
                }
                old.extend(host.idle.pop_front());
            }
            host.is_needed()
        });
        drop(old);
        if let Some(oldest) = oldest {
            self.arrange_reaping(oldest);
        }
    }

    fn tidy(&self, key: &Key) {
        let mut hosts = self.hosts.borrow_mut();
        if hosts.get(key).is_some_and(|host| !host.is_needed()) {
            hosts.remove(key);
        }
    }

    pub(crate) fn stats(&self) -> ClientStats {
        let hosts = self.hosts.borrow();
        let mut stats = ClientStats { total: self.total.get(), reused: self.reused.get(), ..ClientStats::default() };
        for host in hosts.values() {
            stats.idle += host.idle.len();
            stats.in_use += host.gate.stats().current;
            stats.waiting += host.gate.waiters();
        }
        stats.open = stats.idle + stats.in_use;
        stats
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (_, timer) in [self.reaper.get_mut().take(), self.rounds.get_mut().take()].into_iter().flatten() {
            timer.cancel();
        }
    }
}

impl Host {
    /// Whoever waits at the gate or holds a permit of it has a share in it.
    fn is_needed(&self) -> bool {
        !self.idle.is_empty() || Arc::strong_count(&self.gate) > 1
    }
}

/// Removes a host's entry when its last user is gone. Must be dropped after the permit.
struct Tidy {
    pool: Weak<Pool>,
    key: Rc<Key>,
}

impl Drop for Tidy {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.tidy(&self.key);
        }
    }
}

/// The right to one connection. Fields are dropped in order: the permit goes before the host is tidied.
pub(crate) struct Turn {
    pool: Rc<Pool>,
    key: Rc<Key>,
    _permit: OwnedPermit,
    _tidy: Tidy,
}

impl Turn {
    /// An idle connection, if there is one.
    pub(crate) fn idle(self) -> Result<Lease, Turn> {
        match self.pool.take_idle(&self.key) {
            Some(connection) => {
                self.pool.reused.set(self.pool.reused.get() + 1);
                Ok(Lease { connection: Some(connection), turn: Some(self), reused: true })
            }
            None => Err(self),
        }
    }

    /// Takes a new connection in: its task runs until it ends.
    pub(crate) fn fresh<F>(self, sender: SendRequest<Body>, meter: Rc<Meter>, driver: F) -> Lease
    where
        F: Future<Output = Result<(), hyper::Error>> + 'static,
    {
        let pool = &self.pool;
        let id = pool.serial.get() + 1;
        pool.serial.set(id);
        pool.total.set(pool.total.get() + 1);
        let drive = Drive::new(driver);
        Lease { connection: Some(Connection { id, sender, meter, drive }), turn: Some(self), reused: false }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.drive.close();
    }
}

/// A connection in use. Dropped, it is closed.
pub(crate) struct Lease {
    /// There until it is released or dropped.
    connection: Option<Connection>,
    /// Likewise; dropped after the connection, so that whoever is next finds room.
    turn: Option<Turn>,
    pub(crate) reused: bool,
}

impl Lease {
    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("there until released")
    }

    /// Moves what can be moved on the connection.
    pub(crate) fn drive(&self, cx: &mut Context<'_>) {
        if let Some(connection) = &self.connection {
            connection.drive.poll(cx);
        }
    }

    /// When anything last moved on the connection.
    pub(crate) fn last_move(&self) -> Instant {
        self.connection.as_ref().expect("there until released").meter.last_move()
    }

    /// Closes the connection but keeps the right to one.
    pub(crate) fn discard(mut self) -> Turn {
        self.connection = None;
        self.turn.take().expect("there until released")
    }

    /// The response has been read: the connection can serve the next request, if it is in order.
    pub(crate) fn release(mut self) {
        let (Some(mut connection), Some(turn)) = (self.connection.take(), self.turn.take()) else { return };
        // What is left to be done after the last byte takes no waiting.
        if !connection.sender.is_ready() {
            connection.drive.nudge();
        }
        // hyper closes one that was answered before all of the request was sent.
        if connection.sender.is_closed() {
            return;
        }
        if connection.sender.is_ready() {
            turn.pool.put_idle(&turn.key, connection);
            return;
        }
        drop(spawn(async move {
            let Connection { sender, drive, .. } = &mut connection;
            let ready = poll_fn(|cx| {
                drive.poll(cx);
                sender.poll_ready(cx)
            });
            let ready = until(Some(now() + READY_AGAIN_MAX), pin!(ready)).await;
            if let Some(Ok(())) = ready {
                turn.pool.put_idle(&turn.key, connection);
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use tidegate_loop::run;

    use super::*;

    fn pool(per_host: usize) -> Rc<Pool> {
        Pool::new(PoolLimits { per_host, idle_per_host: 8, idle_timeout: Duration::from_secs(60) })
    }

    fn key(host: &str) -> Rc<Key> {
        let target = Target { tls: false, host: host.to_owned(), port: 80 };
        Rc::new(Key { target, proxy: None })
    }

    #[test]
    fn hosts_that_nobody_uses_are_forgotten() {
        run(async {
            let pool = pool(1);
            for number in 0..100 {
                drop(pool.admit(&key(&number.to_string())).await);
            }
            assert_eq!(pool.hosts.borrow().len(), 0);
        })
        .unwrap();
    }

    #[test]
    fn host_is_kept_while_somebody_waits_and_forgotten_by_the_last_to_leave() {
        run(async {
            let pool = pool(1);
            let host = key("a");
            let turn = pool.admit(&host).await;
            let waiting = {
                let (pool, host) = (pool.clone(), host.clone());
                spawn(async move { drop(pool.admit(&host).await) })
            };
            let given_up = {
                let (pool, host) = (pool.clone(), host.clone());
                spawn(async move { drop(pool.admit(&host).await) })
            };
            while pool.stats().waiting < 2 {
                tidegate_loop::yield_now().await;
            }
            given_up.cancel();
            assert!(given_up.await.is_err());
            assert_eq!((pool.stats().in_use, pool.stats().waiting, pool.hosts.borrow().len()), (1, 1, 1));
            drop(turn);
            waiting.await.unwrap();
            assert_eq!(pool.hosts.borrow().len(), 0);
        })
        .unwrap();
    }
}
