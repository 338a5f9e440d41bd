//! What must be there before anything is published or received, and how it is made.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tidegate_amqp::{Connection, Error, Queue};

use super::delay::{self, Binding, Rungs};
use super::link::of_request;
use super::management::{Role, Watched};
use crate::broker::BrokerError;
use crate::envelope_check;
use crate::hash::QuickMap;

/// Which kind of queues tasks wait in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum QueueKind {
    /// On one node, with priorities 0 to 9. Returned tasks keep their place, crashes are counted exactly.
    #[default]
    Classic,
    /// On several nodes, surviving the loss of one. No priorities; a returned task goes to the end of its queue.
    Quorum,
    /// As Celery declares its own: durable, without arguments. One that exists is used as it is, with priorities if it has them.
    Plain,
    /// As dramatiq declares its own: dead letters lie in `NAME.XQ` for a week. No priorities.
    Dramatiq,
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// For how long dramatiq keeps dead letters.
const DRAMATIQ_DEAD_MS: i64 = 604_800_000;

impl QueueKind {
    /// All there are.
    pub const ALL: [QueueKind; 4] = [QueueKind::Classic, QueueKind::Quorum, QueueKind::Plain, QueueKind::Dramatiq];

    /// As it is written in options and lists.
    pub fn as_str(self) -> &'static str {
        match self {
            QueueKind::Classic => "classic",
            QueueKind::Quorum => "quorum",
            QueueKind::Plain => "plain",
            QueueKind::Dramatiq => "dramatiq",
        }
    }

    pub(super) fn of(name: &str) -> Option<QueueKind> {
        QueueKind::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    pub(super) fn dead_name(self, queue: &str) -> String {
        match self {
            QueueKind::Dramatiq => format!("{queue}.XQ"),
            _ => format!("{queue}.dead"),
        }
    }

    /// Where producers themselves let tasks wait.
    pub(super) fn delayed_name(self, queue: &str) -> Option<String> {
        (self == QueueKind::Dramatiq).then(|| format!("{queue}.DQ"))
    }

    /// The queue beside a task queue where its due tasks wait, if the kind has one. Workers of other frameworks consume the task
    /// queue alone, so due tasks of foreign kinds go there.
    pub(super) fn due_name(self, queue: &str) -> Option<String> {
        let own = matches!(self, QueueKind::Classic | QueueKind::Quorum);
        (own && delay::unfit(queue).is_none()).then(|| delay::due_name(queue))
    }

    /// The queue that delayed tasks go to when they are due.
    pub(super) fn target(self, queue: &str) -> String {
        self.due_name(queue).unwrap_or_else(|| queue.to_owned())
    }

    /// As the task queue, so that priorities, dead letters and crash counts are the same.
    fn due(self, name: &str) -> Option<Queue> {
        let mut due = self.queue(name);
        due.name = self.due_name(name)?;
        Some(due)
    }

    /// The queues of a task queue that a policy could harm. The delay queues differ in their number only: one stands for all.
    pub(super) fn watched(self, queue: &str) -> Vec<Watched> {
        let tasks = Role::Tasks { dead_letters: self != QueueKind::Plain };
        let mut watched = vec![
            Watched { queue: queue.to_owned(), role: tasks },
            Watched { queue: self.dead_name(queue), role: Role::Dead },
        ];
        let waiting = self.due_name(queue).into_iter().chain(self.delayed_name(queue));
        watched.extend(waiting.map(|queue| Watched { queue, role: tasks }));
        watched.push(Watched { queue: delay::rung_name(queue, 0), role: Role::Delay });
        watched
    }

    fn queue(self, name: &str) -> Queue {
        let queue = Queue::durable(name);
        let dead = self.dead_name(name);
        let letters = |queue: Queue| {
            queue.argument("x-dead-letter-exchange", "").argument("x-dead-letter-routing-key", dead.as_str())
        };
        match self {
            QueueKind::Classic => {
                letters(queue).argument("x-max-priority", i32::from(super::message::PRIORITY_RETURNED))
            }
            // The limit is the broker's last resort against a task that kills every worker; workers give up earlier.
            QueueKind::Quorum => letters(queue).argument("x-queue-type", "quorum").argument("x-delivery-limit", 50),
            QueueKind::Plain => queue,
            QueueKind::Dramatiq => letters(queue),
        }
    }

    fn delayed(self, name: &str) -> Option<Queue> {
        let queue = Queue::durable(self.delayed_name(name)?);
        Some(
            queue
                .argument("x-dead-letter-exchange", "")
                .argument("x-dead-letter-routing-key", self.dead_name(name).as_str()),
        )
    }

    fn dead(self, name: &str) -> Queue {
        let queue = Queue::durable(self.dead_name(name));
        match self {
            QueueKind::Dramatiq => queue.argument("x-message-ttl", DRAMATIQ_DEAD_MS),
            QueueKind::Quorum => queue.argument("x-queue-type", "quorum"),
            _ => queue,
        }
    }
}

/// Queues that were made already, by this process and since it last found one missing.
#[derive(Debug, Default)]
pub(super) struct Topology {
    queues: RefCell<QuickMap<String, QueueKind>>,
    /// What the log of queues says of others; it may be wrong about those that somebody deleted.
    listed: RefCell<HashMap<String, QueueKind>>,
    ladders: RefCell<HashSet<String>>,
}

/// Logs: streams that everybody appends to and reads from where they like.
pub(super) const RESULTS: &str = "tidegate.results";
pub(super) const REVOKED: &str = "tidegate.revoked";
pub(super) const QUEUES: &str = "tidegate.queues";

/// Old entries go by the file; small ones, or they would stay for weeks.
const SEGMENT_BYTES: i64 = 16 << 20;

/// Everybody who asks for all queues reads all of it, some ten thousand entries.
const LISTING_SEGMENT_BYTES: i64 = 1 << 20;

pub(super) async fn declare_log(
    connection: &Connection,
    name: &str,
    keep: Option<Duration>,
) -> Result<(), BrokerError> {
    let log = Queue::durable(name).argument("x-queue-type", "stream");
    let log = match keep {
        Some(keep) => log
            .argument("x-stream-max-segment-size-bytes", SEGMENT_BYTES)
            .argument("x-max-age", format!("{}s", keep.as_secs().max(1)).as_str()),
        None => log
            .argument("x-stream-max-segment-size-bytes", LISTING_SEGMENT_BYTES)
            .argument("x-max-length-bytes", 4 * LISTING_SEGMENT_BYTES),
    };
    connection.declare(&log).await.map(drop).map_err(|error| of_request(&error))
}

/// Requests one behind the other, without waiting in between; their answers come in order.
pub(super) async fn together(
    requests: impl Iterator<Item = impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    let mut requests: VecDeque<_> = requests.map(Box::pin).collect();
    poll_fn(|cx| {
        let mut answers = Ok(());
        requests.retain_mut(|request| match request.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                if answers.is_ok() {
                    answers = answer;
                }
                false
            }
        });
        if requests.is_empty() || answers.is_err() { Poll::Ready(answers) } else { Poll::Pending }
    })
    .await
}

/// What is to be said of a queue that exists with other arguments, if they are those of another kind. AMQP cannot tell a queue's
/// arguments, but agrees to the right ones.
async fn another_kind(connection: &Connection, asked: QueueKind, queue: &str, error: &Error) -> Option<String> {
    let Error::Refused { refusal, place, .. } = error else { return None };
    let difference = refusal.difference()?;
    for kind in QueueKind::ALL.into_iter().filter(|kind| *kind != asked) {
        let fits = connection.declare(&kind.queue(queue)).await.is_ok();
        connection.try_recv_all();
        if fits {
            return Some(format!(
                "queue {queue:?} exists at {place} as one of the kind {kind}, asked for was {asked} ({} is {}, asked for was \
                 {}); choose the kind {kind} (--queue-kind {kind}), or delete the queue once it is empty",
                difference.argument, difference.current, difference.asked
            ));
        }
    }
    None
}

impl Topology {
    pub(super) fn knows(&self, queue: &str) -> bool {
        self.queues.borrow().contains_key(queue)
    }

    /// As it was made, or else as it is listed.
    pub(super) fn kind(&self, queue: &str) -> Option<QueueKind> {
        self.queues.borrow().get(queue).copied().or_else(|| self.listed.borrow().get(queue).copied())
    }

    pub(super) fn list(&self, queue: &str, kind: QueueKind) {
        self.listed.borrow_mut().insert(queue.to_owned(), kind);
    }

    /// It is there, and is not ours to declare.
    pub(super) fn adopt(&self, queue: &str, kind: QueueKind) {
        self.queues.borrow_mut().insert(queue.to_owned(), kind);
    }

    /// Somebody has deleted something.
    pub(super) fn forget(&self) {
        self.queues.borrow_mut().clear();
        self.ladders.borrow_mut().clear();
    }

    /// Makes sure that a task queue and its dead letters are there; `true` if that was new.
    pub(super) async fn ensure(
        &self,
        connection: &Connection,
        kind: QueueKind,
        queue: &str,
    ) -> Result<bool, BrokerError> {
        if self.knows(queue) {
            return Ok(false);
        }
        envelope_check::queue_name(queue)?;
        // The queue itself first: where it is of another kind, nothing is left lying beside it.
        if let Err(error) = connection.declare(&kind.queue(queue)).await {
            connection.try_recv_all();
            if let Some(message) = another_kind(connection, kind, queue, &error).await {
                return Err(BrokerError::Refused { message });
            }
            let difference = match &error {
                Error::Refused { refusal, .. } if kind == QueueKind::Plain => refusal.difference(),
                _ => None,
            };
            // Whoever configures Celery gives its queues arguments: priorities, a type. They are there, and not ours to say.
            let Some(difference) = difference else { return Err(of_request(&error)) };
            tracing::info!(
                queue,
                argument = difference.argument,
                is = difference.current,
                "the queue is used as it is"
            );
        }
        for beside in kind.delayed(queue).into_iter().chain([kind.dead(queue)]).chain(kind.due(queue)) {
            connection.declare(&beside).await.map_err(|error| of_request(&error))?;
        }
        self.queues.borrow_mut().insert(queue.to_owned(), kind);
        Ok(true)
    }

    /// Makes sure that tasks of this queue can be delayed; `true` if that was new.
    pub(super) async fn ensure_ladder(
        &self,
        connection: &Connection,
        kind: QueueKind,
        queue: &str,
    ) -> Result<bool, BrokerError> {
        let target = kind.target(queue);
        if self.ladders.borrow().contains(&target) {
            return Ok(false);
        }
        if let Some(reason) = delay::unfit(queue) {
            let message =
                format!("tasks of the queue {queue:?} cannot be delayed over AMQP: {reason}; name it otherwise");
            return Err(BrokerError::Refused { message });
        }
        let version = connection.server_property("version");
        let rungs = Rungs::of_version(version.as_deref());
        if rungs == Rungs::AtMostOnce {
            let version = version.unwrap_or_default();
            tracing::warn!(queue, version, "RabbitMQ before 3.10 loses delayed tasks when it is killed; upgrade it");
        }
        self.make_ladder(connection, kind, queue, rungs).await.map_err(|error| of_request(&error))?;
        self.ladders.borrow_mut().insert(target);
        Ok(true)
    }

    async fn make_ladder(
        &self,
        connection: &Connection,
        kind: QueueKind,
        queue: &str,
        rungs: Rungs,
    ) -> Result<(), Error> {
        let target = kind.target(queue);
        if self.ladders.borrow().is_empty() {
            let exchanges = delay::exchanges();
            together(exchanges.iter().map(|exchange| connection.declare_exchange(exchange))).await?;
        }
        // Again, because a queue that was adopted has none yet.
        if let Some(due) = kind.due(queue) {
            connection.declare(&due).await?;
        }
        connection.declare_exchange(&delay::mark(queue)).await?;
        let (best, mut bindings) = delay::ladder(queue, &target, rungs);
        bindings.extend(delay::due_bindings(&target));
        match together(best.iter().map(|rung| async { connection.declare(rung).await.map(drop) })).await {
            Err(error) if rungs == Rungs::AtLeastOnce && is_other_queue(&error) => {
                connection.try_recv_all();
                tracing::warn!(
                    queue,
                    "some delay queues are classic ones of an older broker, which lose tasks when the broker is killed; \
                     delete them with `tidegate queue upgrade` once they are empty"
                );
                let (classic, _) = delay::ladder(queue, &target, Rungs::AtMostOnce);
                declare_either(connection, best.iter().zip(&classic)).await?;
            }
            made => made?,
        }
        together(bindings.iter().map(|Binding { queue, exchange, key }| connection.bind(queue, exchange, key))).await
    }
}

/// Declares the first queue of each pair, or the second where that one exists: some of an older broker's may be deleted already.
async fn declare_either(connection: &Connection, pairs: impl Iterator<Item = (&Queue, &Queue)>) -> Result<(), Error> {
    for (better, older) in pairs {
        match connection.declare(better).await {
            Err(error) if is_other_queue(&error) => {
                connection.try_recv_all();
                connection.declare(older).await?;
            }
            declared => drop(declared?),
        }
    }
    Ok(())
}

/// Whether a queue of this name exists with other arguments.
fn is_other_queue(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.difference().is_some())
}
