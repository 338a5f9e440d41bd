//! The task of a client: it connects, writes the queued commands of all callers together, reads, delivers answers in order,
//! and reconnects.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tidegate_loop::{Sleep, sleep, sleep_until, timeout, yield_now};

use super::answer::Asker;
use super::link::Link;
use super::{Health, Shared};
use crate::error::{CallError, ConnectError, Refusal};
use crate::pipeline::{Event, Garbled, Pipeline};
use crate::scan::ReplyError;
use crate::wire::{Command, Value};

/// Room for some thousand short answers per read.
const READ_BYTES: usize = 64 * 1024;

/// Reads in one poll. Bounded, so that a server that sends without end blocks neither the loop's other tasks nor the time-out.
const READS_MAX: usize = 16;

pub(super) async fn drive(shared: Rc<Shared>) {
    let mut random = fastrand::Rng::new();
    let mut retry = 0;
    loop {
        let limit = shared.options.connect_timeout;
        let opened = timeout(limit, open(&shared)).await.unwrap_or_else(|_| {
            let reason = format!("no answer within {limit:?}");
            Err(ConnectError::Unreachable { address: shared.name.clone(), reason })
        });
        match opened {
            Ok(link) => {
                let since = shared.now();
                let reason = Driver::new(&shared, link).run().await;
                if shared.queue.is_closed() {
                    return;
                }
                tracing::warn!(redis = shared.name, reason, "the connection broke; connecting again");
                // A connection that breaks within a second does not reset the back-off.
                if shared.now().saturating_duration_since(since) > Duration::from_secs(1) {
                    retry = 0;
                }
                shared.set_health(Health::Down(ConnectError::Unreachable { address: shared.name.clone(), reason }));
            }
            Err(error) => {
                tracing::warn!(redis = shared.name, %error, "not connected; trying again");
                shared.set_health(Health::Down(error));
            }
        }
        let delay = shared.options.backoff.delay(retry, random.u64(..), None).unwrap_or(Duration::from_secs(1));
        retry = retry.saturating_add(1);
        sleep(delay).await;
    }
}

/// Connects and logs in.
async fn open(shared: &Shared) -> Result<Link, ConnectError> {
    let address = &shared.address;
    let mut link = Link::open(address).await?;
    let mut hello = Command::new("HELLO").arg("3");
    if let Some(password) = &address.password {
        hello = hello.arg("AUTH").arg(address.user.as_deref().unwrap_or("default")).arg(password.expose());
    }
    if !shared.options.name.is_empty() {
        hello = hello.arg("SETNAME").arg(&shared.options.name);
    }
    let mut pipeline = Pipeline::new(shared.options.reply_bytes_max, shared.redactor.clone());
    let mut out = Vec::new();
    pipeline.submit(&hello, Step::Hello, &mut out);
    if address.database != 0 {
        pipeline.submit(&Command::new("SELECT").arg_int(address.database.into()), Step::Select, &mut out);
    }
    // A Redis that is loading its data answers HELLO and refuses PING.
    pipeline.submit(&Command::new("PING"), Step::Ping, &mut out);
    let broken = |reason: String| ConnectError::Unreachable { address: shared.name.clone(), reason };
    link.write_all(&out).await.map_err(|error| broken(error.to_string()))?;
    let mut buffer = vec![0; 4096];
    while pipeline.in_flight() > 0 {
        let count = link.read(&mut buffer).await.map_err(|error| broken(error.to_string()))?;
        if count == 0 {
            return Err(broken("it closed the connection".to_owned()));
        }
        pipeline.handle_bytes(&buffer[..count]);
        // A server that sends without end must not keep the time-out from being noticed.
        yield_now().await;
        loop {
            let event = pipeline.poll_event().map_err(|garbled| ConnectError::NoRedis {
                address: shared.name.clone(),
                reason: garbled_reason(garbled),
            })?;
            match event {
                Some(Event::Answer(step, Value::Error(reason))) => return Err(step.refused(shared, reason)),
                Some(_) => {}
                None => break,
            }
        }
    }
    Ok(link)
}

#[derive(Clone, Copy)]
enum Step {
    Hello,
    Select,
    Ping,
}

impl Step {
    fn refused(self, shared: &Shared, reason: String) -> ConnectError {
        let address = shared.name.clone();
        let user = shared.address.user.clone().unwrap_or_else(|| "default".to_owned());
        match (self, reason.split(' ').next().unwrap_or_default()) {
            (_, "LOADING" | "BUSY" | "MASTERDOWN") => ConnectError::NotReady { address, reason },
            (_, "WRONGPASS" | "NOAUTH" | "NOPERM") => ConnectError::Login { address, user, reason },
            _ if reason.contains("max number of clients") => ConnectError::NotReady { address, reason },
            _ if reason.contains("AUTH") => ConnectError::Login { address, user, reason },
            (Step::Select, _) => ConnectError::Database { address, reason },
            (Step::Hello | Step::Ping, _) => ConnectError::NoRedis { address, reason },
        }
    }
}

fn garbled_reason(garbled: Garbled) -> String {
    match garbled {
        Garbled::Bytes(reason) => format!("what it says is not RESP ({reason})"),
        Garbled::Reply(error @ (ReplyError::Depth | ReplyError::Bytes { .. } | ReplyError::Elements { .. })) => {
            format!("a reply is refused: {error}")
        }
        Garbled::Reply(error) => format!("what it says is not RESP ({error})"),
        Garbled::Unasked => "it sent an answer without a command".to_owned(),
    }
}

/// A command that was sent.
struct Sent {
    asker: Asker,
    at: Instant,
}

/// One connection, from its first command to its end.
struct Driver<'a> {
    shared: &'a Rc<Shared>,
    link: Link,
    pipeline: Pipeline<Sent>,
    /// Bytes to write; those before `sent` are written.
    out: Vec<u8>,
    sent: usize,
    flushed: bool,
    buffer: Box<[u8]>,
    /// The timer of the oldest answer. It may fire early, because answers arrive; then it is armed again.
    alarm: Option<(Instant, Sleep)>,
}

impl<'a> Driver<'a> {
    fn new(shared: &'a Rc<Shared>, link: Link) -> Driver<'a> {
        let mut out = Vec::new();
        for channel in shared.channels.borrow().keys() {
            Command::new("SUBSCRIBE").arg(channel).write_to(&mut out);
        }
        shared.count(|stats| stats.connects += 1);
        shared.set_health(Health::Up);
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        let pipeline = Pipeline::new(shared.options.reply_bytes_max, shared.redactor.clone());
        Driver { shared, link, pipeline, out, sent: 0, flushed: false, buffer, alarm: None }
    }

    /// Runs until the connection breaks; returns the reason.
    async fn run(mut self) -> String {
        let shared = self.shared;
        let mut taking = pin!(shared.queue.recv_all());
        let mut ended = false;
        let reason = poll_fn(|cx| {
            let mut reads = 0;
            loop {
                match self.poll_send(cx) {
                    Poll::Ready(Err(error)) => return Poll::Ready(error.to_string()),
                    Poll::Ready(Ok(())) if !ended => match taking.as_mut().poll(cx) {
                        Poll::Ready(Ok(submissions)) => {
                            taking.set(shared.queue.recv_all());
                            self.submit(submissions);
                            continue;
                        }
                        Poll::Ready(Err(_)) => ended = true,
                        Poll::Pending => {}
                    },
                    Poll::Ready(Ok(())) | Poll::Pending => {}
                }
                if ended && self.out.is_empty() && self.pipeline.in_flight() == 0 {
                    return Poll::Ready("closed".to_owned());
                }
                let more = reads == READS_MAX;
                let read = if more { Poll::Pending } else { self.link.poll_read(cx, &mut self.buffer) };
                match read {
                    Poll::Ready(Ok(0)) => return Poll::Ready("Redis closed it".to_owned()),
                    Poll::Ready(Ok(count)) => {
                        if let Err(garbled) = self.hand_out(count) {
                            return Poll::Ready(garbled_reason(garbled));
                        }
                        reads += 1;
                        continue;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(error.to_string()),
                    Poll::Pending => {}
                }
                match self.poll_alarm(cx) {
                    Poll::Ready(()) => {
                        let limit = shared.options.response_timeout;
                        return Poll::Ready(format!("no answer within {limit:?}"));
                    }
                    Poll::Pending => {
                        if more {
                            cx.waker().wake_by_ref();
                        }
                        return Poll::Pending;
                    }
                }
            }
        })
        .await;
        let mut lost = 0;
        for Sent { asker, .. } in self.pipeline.unanswered() {
            lost += 1;
            asker.bring(Err(CallError::Unanswered { address: shared.name.clone(), reason: reason.clone() }));
        }
        shared.count(|stats| {
            stats.unanswered += lost;
            stats.in_flight = 0;
        });
        reason
    }

    fn submit(&mut self, submissions: impl IntoIterator<Item = super::Submission>) {
        let mut answers = 0;
        let at = self.shared.now();
        for super::Submission { command, asker } in submissions {
            match asker {
                Some(asker) => {
                    self.pipeline.submit(&command, Sent { asker, at }, &mut self.out);
                    answers += 1;
                }
                None => command.write_to(&mut self.out),
            }
        }
        self.flushed = false;
        let in_flight = self.pipeline.in_flight();
        self.shared.count(|stats| {
            stats.commands += answers;
            stats.batches += 1;
            stats.in_flight = in_flight;
        });
    }

    /// Ready when all bytes have been handed to the kernel.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            match self.link.poll_write(cx, &self.out[self.sent..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => self.sent += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.out.clear();
        self.sent = 0;
        if !self.flushed {
            match self.link.poll_flush(cx) {
                Poll::Ready(Ok(())) => self.flushed = true,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn hand_out(&mut self, count: usize) -> Result<(), Garbled> {
        self.pipeline.handle_bytes(&self.buffer[..count]);
        let mut answered = 0;
        while let Some(event) = self.pipeline.poll_event()? {
            match event {
                Event::Answer(Sent { asker, .. }, Value::Error(reason)) => {
                    answered += 1;
                    asker.bring(Err(CallError::Refused(Refusal::new(&self.shared.name, reason))));
                }
                Event::Answer(Sent { asker, .. }, value) => {
                    answered += 1;
                    asker.bring(Ok(value));
                }
                Event::Push(parts) => self.shared.tell_channel(&parts),
            }
        }
        let in_flight = self.pipeline.in_flight();
        self.shared.count(|stats| {
            stats.answered += answered;
            stats.in_flight = in_flight;
        });
        Ok(())
    }

    /// Ready when an answer is overdue.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(Sent { at, .. }) = self.pipeline.oldest() else { return Poll::Pending };
        let due = *at + self.shared.options.response_timeout;
        loop {
            let (_, alarm) = self.alarm.get_or_insert_with(|| (due, sleep_until(due)));
            if Pin::new(alarm).poll(cx).is_pending() {
                return Poll::Pending;
            }
            let (at, _) = self.alarm.take().expect("polled just now");
            if at >= due {
                return Poll::Ready(());
            }
        }
    }
}

impl Shared {
    pub(super) fn now(&self) -> Instant {
        tidegate_loop::now()
    }
}
