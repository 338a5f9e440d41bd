//! The client's connections, kept for the next request.
//!
//! A host's gate has a permit for each connection that may be open. Each open connection is either idle, or in use or being
//! opened under a permit. A request opens a connection only if it holds a permit and found none idle, so held permits and
//! idle connections together never exceed the gate. The gate is first come, first served, and safe to cancel.

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
use crate::deadline::{now, until};

/// How long a connection may take to become ready again after its response has been read. Usually it is ready at once.
const READY_AGAIN_MAX: Duration = Duration::from_secs(1);

/// After this long, an idle connection is watched for its end. Most are used again before.
const WATCHED_AFTER: Duration = Duration::from_millis(20);

/// The identity of a host: connections with the same key are interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    pub(crate) target: Target,
    /// The proxy, if the requests go through one.
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
    /// Connections now: idle, in use, or being opened.
    pub open: usize,
    /// Connections kept for the next request.
    pub idle: usize,
    /// Connections in use by a request or its response's body, or being opened for one.
    pub in_use: usize,
    /// Requests that wait for a connection because their host has its maximum.
    pub waiting: usize,
    /// Connections opened so far.
    pub total: u64,
    /// Requests so far that were sent on a connection that had served another one.
    pub reused: u64,
}

pub(crate) struct Pool {
    limits: PoolLimits,
    hosts: RefCell<HashMap<Rc<PoolKey>, PoolHost>>,
    /// The timer that closes connections that were idle for too long, if one is set.
    reaper: RefCell<Option<(Instant, TimerHandle)>>,
    /// The timer that starts to watch idle connections, if one is set.
    rounds: RefCell<Option<(Instant, TimerHandle)>>,
    serial: Cell<u64>,
    total: Cell<u64>,
    reused: Cell<u64>,
}

struct PoolHost {
    gate: Arc<Semaphore>,
    /// Most recently used last. That one is taken first, so that surplus connections reach the idle time-out.
    idle: VecDeque<IdleConnection>,
}

struct IdleConnection {
    connection: Connection,
    since: Instant,
}

/// A connection on which one request at a time can be sent.
pub(crate) struct Connection {
    id: u64,
    pub(crate) sender: SendRequest<Body>,
    pub(crate) meter: Rc<Meter>,
    /// hyper's reading and writing, done by the task that polls it.
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
    /// Safe: a dropped request leaves the line.
    pub(crate) async fn admit(self: &Rc<Self>, key: &Rc<PoolKey>) -> PoolTurn {
        // Declared before `gate`, so dropped after it: the host's entry is removed by the last request to leave.
        let tidy = PoolTidy { pool: Rc::downgrade(self), key: key.clone() };
        let gate = {
            let mut hosts = self.hosts.borrow_mut();
            let host = hosts.entry(key.clone()).or_insert_with(|| PoolHost {
                gate: Arc::new(Semaphore::new(self.limits.per_host)),
                idle: VecDeque::new(),
            });
            host.gate.clone()
        };
        let permit = gate.acquire_owned().await.expect("the gate is never closed");
        PoolTurn { pool: self.clone(), key: key.clone(), _permit: permit, _tidy: tidy }
    }

    fn take_idle(&self, key: &PoolKey) -> Option<Connection> {
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

    fn put_idle(self: &Rc<Self>, key: &Rc<PoolKey>, connection: Connection) {
        connection.drive.set_used(false);
        let mut surplus = None;
        if let Some(host) = self.hosts.borrow_mut().get_mut(key) {
            host.idle.push_back(IdleConnection { connection, since: now() });
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
        // A timer in the past belongs to a loop that has ended.
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

    /// Starts to watch the connections that have been idle for [`WATCHED_AFTER`].
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

    /// Removes a connection that ended while it was idle.
    fn forget(&self, key: &PoolKey, id: u64) {
        let gone = self.hosts.borrow_mut().get_mut(key).and_then(|host| {
            let at = host.idle.iter().position(|idle| idle.connection.id == id)?;
            host.idle.remove(at)
        });
        drop(gone);
        self.tidy(key);
    }

    /// Sets the timer that closes idle connections: one for all, and none if no connection is idle.
    fn arrange_reaping(self: &Rc<Self>, when: Instant) {
        let Some(handle) = LoopHandle::try_current() else { return };
        let mut reaper = self.reaper.borrow_mut();
        // A timer in the past belongs to a loop that has ended.
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

    fn tidy(&self, key: &PoolKey) {
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

impl PoolHost {
    /// Each request that waits at the gate or holds a permit also holds a reference to the gate.
    fn is_needed(&self) -> bool {
        !self.idle.is_empty() || Arc::strong_count(&self.gate) > 1
    }
}

/// Removes a host's entry with its last request. Must be dropped after the permit.
struct PoolTidy {
    pool: Weak<Pool>,
    key: Rc<PoolKey>,
}

impl Drop for PoolTidy {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.tidy(&self.key);
        }
    }
}

/// The right to one connection. Fields are dropped in order: the permit before the host's entry.
pub(crate) struct PoolTurn {
    pool: Rc<Pool>,
    key: Rc<PoolKey>,
    _permit: OwnedPermit,
    _tidy: PoolTidy,
}

impl PoolTurn {
    /// Takes an idle connection, if there is one.
    pub(crate) fn idle(self) -> Result<Lease, PoolTurn> {
        match self.pool.take_idle(&self.key) {
            Some(connection) => {
                self.pool.reused.set(self.pool.reused.get() + 1);
                Ok(Lease { connection: Some(connection), turn: Some(self), reused: true })
            }
            None => Err(self),
        }
    }

    /// Adds a new connection. `driver` is hyper's future that reads and writes.
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

/// A connection in use. Dropping this closes it.
pub(crate) struct Lease {
    /// `Some` until it is released or dropped.
    connection: Option<Connection>,
    /// Likewise. Dropped after the connection, so that the next request may open one.
    turn: Option<PoolTurn>,
    pub(crate) reused: bool,
}

impl Lease {
    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("the lease is not released")
    }

    /// Reads and writes on the connection as far as possible.
    pub(crate) fn drive(&self, cx: &mut Context<'_>) {
        if let Some(connection) = &self.connection {
            connection.drive.poll(cx);
        }
    }

    /// Returns when a byte was last sent or received.
    pub(crate) fn last_move(&self) -> Instant {
        self.connection.as_ref().expect("the lease is not released").meter.last_move()
    }

    /// Closes the connection but keeps the right to one.
    pub(crate) fn discard(mut self) -> PoolTurn {
        self.connection = None;
        self.turn.take().expect("the lease is not released")
    }

    /// Returns the connection to the pool after its response has been read, if it can serve another request.
    pub(crate) fn release(mut self) {
        let (Some(mut connection), Some(turn)) = (self.connection.take(), self.turn.take()) else { return };
        // hyper's work after the last byte needs no waiting, so one poll is usually enough.
        if !connection.sender.is_ready() {
            connection.drive.nudge();
        }
        // hyper closes a connection whose response came before the whole request was sent.
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

    fn key(host: &str) -> Rc<PoolKey> {
        let target = Target { tls: false, host: host.to_owned(), port: 80 };
        Rc::new(PoolKey { target, proxy: None })
    }

    #[test]
    fn hosts_without_requests_are_forgotten() {
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
    fn host_is_kept_while_a_request_waits_and_forgotten_by_the_last_to_leave() {
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
