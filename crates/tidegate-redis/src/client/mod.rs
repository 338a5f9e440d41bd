//! One connection to Redis, shared by all callers: commands are drained from one queue, written together, and answered in
//! order through futures.

mod answer;
mod driver;
mod link;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use tidegate_limit::Backoff;
use tidegate_loop::{JoinHandle, LoopHandle};
use tidegate_secret::Redactor;
use tidegate_sync::Queue;

use self::answer::{Answer, Asker};
use crate::address::Address;
use crate::error::{CallError, ConnectError, RefusalKind};
use crate::wire::{Command, Value};

/// How a client behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The name in `CLIENT LIST`, without spaces. Empty: none.
    pub name: String,
    /// Time from the look-up of the name to a Redis that is ready.
    pub connect_timeout: Duration,
    /// Time from sending a command to its complete answer. A connection with a later answer is closed, even if other bytes arrive
    /// meanwhile.
    pub response_timeout: Duration,
    /// Largest reply in bytes. When a larger one begins, the connection is closed before the reply is buffered. Default: 4 MiB.
    pub reply_bytes_max: usize,
    /// Delays between attempts to connect. Attempts go on without end.
    pub backoff: Backoff,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            name: "tidegate".to_owned(),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(5),
            reply_bytes_max: 4 * 1024 * 1024,
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(3)).with_retries(u32::MAX),
        }
    }
}

/// A connection to Redis; clones share it. It belongs to its loop.
///
/// A command waits until there is a connection, and is sent together with the commands of other callers. When the
/// connection breaks, commands that were sent end with [`CallError::Unanswered`], and the client reconnects.
///
/// ```no_run
/// use tidegate_redis::{Client, ClientOptions, Command};
///
/// # tidegate_loop::run(async {
/// let redis = Client::open("redis://localhost".parse()?, ClientOptions::default());
/// redis.ready().await?; // or go on without waiting
/// redis.call(Command::new("SET").arg("key").arg("value")).await?;
/// assert_eq!(redis.call(Command::new("GET").arg("key")).await?.as_bytes(), Some(&b"value"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap().unwrap();
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Rc<Inner>,
}

/// Dropped with the last clone; then the connection is closed.
struct Inner {
    shared: Rc<Shared>,
    driver: RefCell<Option<JoinHandle<()>>>,
}

pub(crate) struct Submission {
    command: Command,
    /// `None` for commands without an answer in order, such as `SUBSCRIBE`.
    asker: Option<Asker>,
}

type Listener = Rc<dyn Fn(&[u8])>;

pub(crate) struct Shared {
    address: Address,
    /// The address as messages show it.
    name: String,
    /// For what Redis says in words.
    redactor: Redactor,
    options: ClientOptions,
    queue: Queue<Submission>,
    health: RefCell<Health>,
    /// Counts the changes of `health`.
    changes: Cell<u64>,
    /// Wakers of tasks that wait for a change of `health`.
    watching: RefCell<Vec<Waker>>,
    channels: RefCell<HashMap<Vec<u8>, Listener>>,
    stats: Cell<ClientStats>,
}

#[derive(Clone)]
pub(crate) enum Health {
    /// The first attempt has not ended.
    Opening,
    Up,
    /// The last attempt failed; the next one follows.
    Down(ConnectError),
}

/// A client's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Commands sent.
    pub commands: u64,
    /// How often the queue was drained for them. Commands per batch shows what pipelining saves.
    pub batches: u64,
    /// Answers and refusals received.
    pub answered: u64,
    /// Commands whose connection broke before the answer.
    pub unanswered: u64,
    /// Sent and not answered.
    pub in_flight: usize,
    /// Not sent yet.
    pub queued: usize,
    /// Connections opened.
    pub connects: u64,
    /// Whether the client is connected.
    pub connected: bool,
}

impl Client {
    /// Returns a client that connects in the background, and reconnects until its last clone is dropped.
    ///
    /// # Panics
    /// Outside of a loop.
    #[must_use]
    pub fn open(address: Address, options: ClientOptions) -> Client {
        let shared = Rc::new(Shared {
            name: address.to_string(),
            redactor: Redactor::new(&address.password),
            address,
            options,
            queue: Queue::unbounded(),
            health: RefCell::new(Health::Opening),
            changes: Cell::new(0),
            watching: RefCell::default(),
            channels: RefCell::default(),
            stats: Cell::default(),
        });
        let driver = LoopHandle::current().task().name("redis connection").spawn(driver::drive(shared.clone()));
        Client { inner: Rc::new(Inner { shared, driver: RefCell::new(Some(driver)) }) }
    }

    /// Waits until there is a connection.
    ///
    /// # Errors
    /// [`ConnectError`] if the attempt failed for a reason that waiting does not cure, such as a wrong password. The client still
    /// tries again, because the server's configuration may be corrected.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ready(&self) -> Result<(), ConnectError> {
        loop {
            let seen = self.changes();
            match &*self.shared().health.borrow() {
                Health::Up => return Ok(()),
                Health::Down(error) if !error.is_temporary() => return Err(error.clone()),
                Health::Opening | Health::Down(_) => {}
            }
            self.changed(seen).await;
        }
    }

    /// Waits until there is a connection, or the first attempt has failed for any reason. For callers that report a failure
    /// instead of waiting. The client still tries again.
    ///
    /// # Errors
    /// Why there is no connection.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn attempted(&self) -> Result<(), ConnectError> {
        loop {
            let seen = self.changes();
            match &*self.shared().health.borrow() {
                Health::Up => return Ok(()),
                Health::Down(error) => return Err(error.clone()),
                Health::Opening => {}
            }
            self.changed(seen).await;
        }
    }

    /// Sends a command together with those of other callers and waits for its answer.
    ///
    /// # Errors
    /// See [`CallError`]. While Redis cannot be reached the call waits; put a time-out around it to bound that.
    ///
    /// # Cancel safety
    /// If the future is dropped before the command was sent, it may still be sent; its answer is discarded.
    pub async fn call(&self, command: Command) -> Result<Value, CallError> {
        self.submit(command)?.await
    }

    /// Sends several commands in a row, as [`call`](Self::call) does, and returns their answers in order.
    ///
    /// # Cancel safety
    /// As of `call`, for each of them.
    pub async fn call_all(&self, commands: Vec<Command>) -> Vec<Result<Value, CallError>> {
        let answers: Vec<Result<Answer, CallError>> =
            commands.into_iter().map(|command| self.submit(command)).collect();
        let mut answered = Vec::with_capacity(answers.len());
        for answer in answers {
            answered.push(match answer {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            });
        }
        answered
    }

    fn submit(&self, command: Command) -> Result<Answer, CallError> {
        let shared = self.shared();
        if let Health::Down(error) = &*shared.health.borrow()
            && !error.is_temporary()
        {
            return Err(CallError::Unusable(error.clone()));
        }
        let (asker, answer) = answer::place();
        match shared.queue.try_push(Submission { command, asker: Some(asker) }) {
            Ok(()) => Ok(answer),
            Err(_) => Err(CallError::Closed),
        }
    }

    /// Runs a script by its digest, and sends its text where Redis does not know it.
    pub(crate) async fn run_script(&self, script: &Script, arguments: &Command) -> Result<Value, CallError> {
        let by_digest = script.command("EVALSHA", &script.digest, arguments);
        match self.call(by_digest).await {
            Err(CallError::Refused(refusal)) if refusal.kind == RefusalKind::NoScript => {
                self.call(script.command("EVAL", script.text, arguments)).await
            }
            outcome => outcome,
        }
    }

    /// Calls `listener` with each message of a channel, on this connection and all later ones.
    pub(crate) fn subscribe(&self, channel: &str, listener: impl Fn(&[u8]) + 'static) {
        let shared = self.shared();
        shared.channels.borrow_mut().insert(channel.into(), Rc::new(listener));
        // A later connection subscribes to all channels when it opens; subscribing twice does no harm.
        if matches!(&*shared.health.borrow(), Health::Up) {
            let command = Command::new("SUBSCRIBE").arg(channel);
            let _ = shared.queue.try_push(Submission { command, asker: None });
        }
    }

    pub(crate) fn unsubscribe(&self, channel: &str) {
        let shared = self.shared();
        let listener = shared.channels.borrow_mut().remove(channel.as_bytes());
        drop(listener);
        if matches!(&*shared.health.borrow(), Health::Up) {
            let command = Command::new("UNSUBSCRIBE").arg(channel);
            let _ = shared.queue.try_push(Submission { command, asker: None });
        }
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        let shared = self.shared();
        let connected = matches!(&*shared.health.borrow(), Health::Up);
        ClientStats { queued: shared.queue.len(), connected, ..shared.stats.get() }
    }

    /// The address, without its password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.shared().name
    }

    /// Returns what Redis said without the password, for a message.
    pub(crate) fn redact<'a>(&self, told: &'a str) -> Cow<'a, str> {
        self.shared().redactor.redact(told)
    }

    /// Accepts no further commands, waits for the answers of those in flight, and closes the connection. Without a connection,
    /// waiting commands end with [`CallError::Closed`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the connection is closed all the same.
    pub async fn close(&self) {
        self.shared().queue.close();
        let driver = self.inner.driver.borrow_mut().take();
        if let Some(driver) = driver {
            if !self.is_up() {
                driver.cancel();
            }
            let _ = driver.await;
        }
        while let Ok(submission) = self.shared().queue.try_recv() {
            drop(submission);
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.shared().health.borrow(), Health::Up)
    }

    /// Returns why the last attempt to connect failed, if there is no connection.
    #[must_use]
    pub fn fault(&self) -> Option<ConnectError> {
        match &*self.shared().health.borrow() {
            Health::Down(error) => Some(error.clone()),
            Health::Opening | Health::Up => None,
        }
    }

    pub(crate) fn changes(&self) -> u64 {
        self.shared().changes.get()
    }

    /// Waits until `health` has changed after `seen`: connected, disconnected, or an attempt failed.
    pub(crate) async fn changed(&self, seen: u64) {
        let shared = self.shared();
        poll_fn(|cx| {
            if shared.changes.get() != seen {
                return Poll::Ready(());
            }
            let mut watching = shared.watching.borrow_mut();
            if !watching.iter().any(|waker| waker.will_wake(cx.waker())) {
                watching.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn shared(&self) -> &Rc<Shared> {
        &self.inner.shared
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.queue.close();
        if let Some(driver) = self.driver.take() {
            driver.cancel();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("address", &self.address()).field("stats", &self.stats()).finish()
    }
}

impl Shared {
    fn count(&self, change: impl FnOnce(&mut ClientStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    fn set_health(&self, health: Health) {
        // Commands that wait for a connection which will not be made end with the reason.
        if let Health::Down(error) = &health
            && !error.is_temporary()
        {
            while let Ok(submission) = self.queue.try_recv() {
                if let Some(asker) = submission.asker {
                    asker.bring(Err(CallError::Unusable(error.clone())));
                }
            }
        }
        let before = self.health.replace(health);
        drop(before);
        self.changes.set(self.changes.get() + 1);
        for waker in self.watching.take() {
            waker.wake();
        }
    }

    fn tell_channel(&self, parts: &[Value]) {
        if let [Value::Bytes(kind), Value::Bytes(channel), Value::Bytes(message)] = parts
            && kind == b"message"
        {
            let listener = self.channels.borrow().get(channel.as_slice()).cloned();
            if let Some(listener) = listener {
                listener(message);
            }
        }
    }
}

/// A Lua script: its text and its digest in Redis.
pub(crate) struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    /// Loads the script into Redis, which returns its digest.
    pub(crate) async fn load(client: &Client, text: &'static str) -> Result<Script, CallError> {
        let answer = client.call(Command::new("SCRIPT").arg("LOAD").arg(text)).await?;
        let digest = String::from_utf8_lossy(answer.as_bytes().unwrap_or_default()).into_owned();
        Ok(Script { text, digest })
    }

    fn command(&self, name: &str, script: &str, arguments: &Command) -> Command {
        Command::new(name).arg(script).followed_by(arguments)
    }
}
