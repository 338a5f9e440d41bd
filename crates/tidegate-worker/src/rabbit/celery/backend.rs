//! Celery's result backend in Redis: results by their id, and the parts of chords, counted. Its keys are Celery's own, so its
//! producers and its workers find everything where they look for it.
//!
//! Everything that is asked of Redis here may be asked twice. So while Redis is away it is asked again until it answers, and
//! whoever settles a task waits: had it to begin anew, what it has published already would be published again.

use std::cell::RefCell;
use std::fmt;
use std::pin::pin;
use std::time::Duration;

use serde_json::Value as Json;
use tidegate_loop::{sleep, timeout};
use tidegate_redis::{Address, AddressError, CallError, Client, ClientOptions, Command, RefusalKind, Value};

use crate::broker::BrokerError;
use crate::codec::celery::{Answer, Begun, Part, Returned};

/// For how long chords are kept at least: their parts may be far apart.
const CHORD_S_MIN: i64 = 86_400;

/// For how long who counted the last part may take to publish the body; after that another one may.
const CLAIM_S: i64 = 60;

/// For how long a part that comes once more is known to be too late.
const DONE_S: i64 = 300;

/// After this long without an answer it is told that one is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between questions that are refused until somebody mends something.
const PAUSE: Duration = Duration::from_secs(1);

/// Size of one reply in bytes: the last part of a chord is answered with all parts.
const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Keeps what is told of a task unless it has succeeded before: a second run of it changes nothing about that.
const STORE: &str = "\
local kept = redis.call('GET', KEYS[1])
if kept then
  local read, meta = pcall(cjson.decode, kept)
  if read and type(meta) == 'table' and meta['status'] == 'SUCCESS' then return 0 end
end
if ARGV[2] == '0' then redis.call('SET', KEYS[1], ARGV[1]) else redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2]) end
redis.call('PUBLISH', KEYS[1], ARGV[1])
return 1";

/// Notes a part, once, and hands out all of them to who brought the last. A second try of the same task may ask again: it did not
/// get to publish the body, or does not know.
const PART: &str = "\
local results, extra, size, seen, claim, shape = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local member, value, score, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local holder = redis.call('GET', claim)
if holder == 'done' then return {} end
if redis.call('SADD', seen, member) == 1 then redis.call('ZADD', results, score, value) end
for at = 1, 4 do redis.call('EXPIRE', KEYS[at], ARGV[5]) end
local parts = redis.call('GET', size)
if not parts then return {} end
if redis.call('ZCARD', results) ~= tonumber(parts) + tonumber(redis.call('GET', extra) or 0) then return {} end
if holder and holder ~= token then return {} end
redis.call('SET', claim, token, 'EX', ARGV[6])
return {redis.call('ZRANGE', results, 0, -1), redis.call('GET', shape) or ''}";

/// The body is published: nothing of the chord is needed any more.
const DONE: &str = "\
if redis.call('GET', KEYS[5]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
redis.call('SET', KEYS[5], 'done', 'EX', ARGV[2])
return 1";

/// Celery's results in Redis. With it `chord` works, and producers whose `result_backend` is this Redis get their results.
///
/// ```no_run
/// use tidegate_worker::rabbit::{Options, RabbitBroker, RedisResults};
///
/// # tidegate_loop::run(async {
/// let broker = RabbitBroker::open("amqp://localhost", Options::default()).await?;
/// let results = RedisResults::open("redis://localhost/0")?;
/// results.ready().await?;
/// broker.keep_celery_results(results);
/// # Ok::<(), tidegate_worker::BrokerError>(())
/// # }).unwrap().unwrap();
/// ```
pub struct RedisResults {
    client: Client,
    /// In seconds; 0 keeps them for ever.
    expires_s: i64,
    /// What was last complained about; `None` while all is well.
    complaint: RefCell<Option<String>>,
}

/// A chord all of whose parts are there.
pub(in crate::rabbit) struct Whole {
    pub(in crate::rabbit) parts: Vec<Returned>,
    /// As in [`Begun::shape`].
    pub(in crate::rabbit) shape: Option<Json>,
}

impl RedisResults {
    /// For how long results are kept unless [told otherwise](Self::expire_after); Celery's default for `result_expires`.
    pub const EXPIRES: Duration = Duration::from_secs(86_400);

    /// At an address such as `redis://USER:PASSWORD@HOST:6379/0`, `rediss://…` or `unix://PATH`. It is connected to in the
    /// background, again and again.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub fn open(address: &str) -> Result<RedisResults, BrokerError> {
        let read = address.parse::<Address>();
        read.map(RedisResults::open_at)
            .map_err(|error: AddressError| BrokerError::Refused { message: error.to_string() })
    }

    /// As [`open`](Self::open), at an address that was read before.
    #[must_use]
    pub fn open_at(address: Address) -> RedisResults {
        let mut options = ClientOptions::default();
        options.reply_bytes_max = REPLY_BYTES_MAX;
        let client = Client::open(address, options);
        RedisResults { client, expires_s: seconds(RedisResults::EXPIRES), complaint: RefCell::default() }
    }

    /// Keeps results for so long, in whole seconds; none at all keeps them for ever.
    #[must_use]
    pub fn expire_after(mut self, time: Duration) -> RedisResults {
        self.expires_s = seconds(time);
        self
    }

    /// Waits for the first connection, so that a wrong address or password, or a Redis that is not there, is told at once.
    ///
    /// # Errors
    /// What is wrong, and the way out.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ready(&self) -> Result<(), BrokerError> {
        self.client.attempted().await.map_err(|error| {
            let message = error.to_string();
            if error.is_temporary() { BrokerError::Retry { message } } else { BrokerError::Refused { message } }
        })
    }

    /// Keeps what is told of tasks, and tells those who listen. What Redis will never take is told and left out.
    pub(in crate::rabbit) async fn store(&self, answers: &[Answer]) -> Result<(), BrokerError> {
        let (mut ids, mut commands) = (Vec::new(), Vec::new());
        for answer in answers {
            for command in self.commands(answer) {
                ids.push(&answer.id);
                commands.push(command);
            }
        }
        if commands.is_empty() {
            return Ok(());
        }
        for (id, answered) in ids.into_iter().zip(self.ask(&commands).await?) {
            if let Err(error) = answered {
                tracing::error!(task.id = id, error, "a result cannot be kept");
            }
        }
        Ok(())
    }

    /// As [`store`](Self::store), of a task that begins; not worth a second attempt.
    pub(in crate::rabbit) async fn tell(&self, answer: &Answer) -> Result<(), BrokerError> {
        for answered in self.client.call_all(self.commands(answer)).await {
            answered.map_err(|error| BrokerError::Retry { message: error.to_string() })?;
        }
        Ok(())
    }

    /// Nothing is worth more than a success, so that one needs no look at what is there.
    fn commands(&self, answer: &Answer) -> Vec<Command> {
        let key = format!("celery-task-meta-{}", answer.id);
        if !answer.success {
            let command = Command::new("EVAL").arg(STORE).arg_int(1).arg(key);
            return vec![command.arg(&answer.body).arg_int(self.expires_s)];
        }
        let keep = Command::new("SET").arg(&key).arg(&answer.body);
        let keep = if self.expires_s == 0 { keep } else { keep.arg("EX").arg_int(self.expires_s) };
        vec![keep, Command::new("PUBLISH").arg(key).arg(&answer.body)]
    }

    fn chord_s(&self) -> i64 {
        self.expires_s.max(CHORD_S_MIN)
    }

    /// Has the parts of a chord counted.
    pub(in crate::rabbit) async fn begin_chord(&self, chord: &Begun) -> Result<(), BrokerError> {
        let size = i64::try_from(chord.size).unwrap_or(i64::MAX);
        let [_, _, count, _, claim, shape] = keys(&chord.group);
        let keep = |key: String| Command::new("SETEX").arg(key).arg_int(self.chord_s());
        let mut commands = vec![Command::new("DEL").arg(claim), keep(count).arg_int(size)];
        let kept = chord.shape.as_ref().map(|shape| serde_json::json!({ "result": shape }).to_string());
        commands.extend(kept.map(|kept| keep(shape).arg(kept)));
        all(self.ask(&commands).await?).map(drop)
    }

    /// Brings a part; the whole chord, if it was the last and the body is ours to publish.
    pub(in crate::rabbit) async fn part(&self, part: &Part) -> Result<Option<Whole>, BrokerError> {
        let score = part.index.map_or_else(|| "+inf".to_owned(), |index| index.to_string());
        let returned = &part.returned;
        let member = format!("{}:{score}", returned.id);
        let command = script(PART, &part.group).arg(member).arg(returned.encode()).arg(&score).arg(&returned.id);
        let answered = all(self.ask(&[command.arg_int(self.chord_s()).arg_int(CLAIM_S)]).await?)?;
        let [Value::Array(answered)] = &answered[..] else { return Ok(None) };
        let [Value::Array(parts), shape] = &answered[..] else { return Ok(None) };
        let parts: Vec<Returned> = parts.iter().filter_map(Value::as_bytes).filter_map(Returned::decode).collect();
        let shape = shape.as_bytes().and_then(|shape| serde_json::from_slice::<Json>(shape).ok());
        let shape = shape.and_then(|mut shape| shape.get_mut("result").map(Json::take));
        Ok((!parts.is_empty()).then_some(Whole { parts, shape }))
    }

    /// The body was published by who brought this part.
    pub(in crate::rabbit) async fn end_chord(&self, part: &Part) -> Result<(), BrokerError> {
        let command = script(DONE, &part.group).arg(&part.returned.id).arg_int(DONE_S);
        all(self.ask(&[command]).await?).map(drop)
    }

    /// Asks all of it until Redis answers. Inside: what it said, or why it will never do that.
    async fn ask(&self, commands: &[Command]) -> Result<Vec<Result<Value, String>>, BrokerError> {
        loop {
            let mut asked = pin!(self.client.call_all(commands.to_vec()));
            let answers = loop {
                match timeout(PATIENCE, asked.as_mut()).await {
                    Ok(answers) => break answers,
                    Err(_) => {
                        let fault = self.client.fault().map(|fault| fault.to_string());
                        self.complain(fault.unwrap_or_else(|| format!("{} does not answer", self.client.address())));
                    }
                }
            };
            match answers.into_iter().map(judged).collect::<Result<Vec<_>, CallError>>() {
                Ok(answers) => {
                    if self.complaint.take().is_some() {
                        tracing::info!(redis = self.client.address(), "Celery's results are kept again");
                    }
                    return Ok(answers);
                }
                Err(CallError::Closed) => return Err(BrokerError::Closed),
                // It is connected to again before it is asked again.
                Err(CallError::Unanswered { .. }) => {}
                Err(error) => {
                    self.complain(error.to_string());
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Once for each reason.
    fn complain(&self, reason: String) {
        let mut complaint = self.complaint.borrow_mut();
        if complaint.as_ref() != Some(&reason) {
            tracing::warn!(reason, "Celery's results wait for Redis; until then no task is acknowledged");
            *complaint = Some(reason);
        }
    }
}

/// An answer, with an inner error where asking again would bring the same one; or why it should be asked again.
fn judged(answer: Result<Value, CallError>) -> Result<Result<Value, String>, CallError> {
    match answer {
        Ok(value) => Ok(Ok(value)),
        Err(CallError::Refused(refusal)) if refusal.kind == RefusalKind::Wrong => Ok(Err(refusal.to_string())),
        Err(error) => Err(error),
    }
}

/// All of them, or the first that Redis will never give.
fn all(answers: Vec<Result<Value, String>>) -> Result<Vec<Value>, BrokerError> {
    let answers: Result<Vec<Value>, String> = answers.into_iter().collect();
    answers.map_err(|message| BrokerError::Refused { message })
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

fn script(text: &str, group: &str) -> Command {
    let command = Command::new("EVAL").arg(text).arg_int(6);
    keys(group).iter().fold(command, |command, key| command.arg(key))
}

/// Results, what is added to the size, the size, whose parts are there, who publishes the body, the shape.
fn keys(group: &str) -> [String; 6] {
    [".j", ".t", ".s", ".d", ".c", ""].map(|what| format!("celery-taskset-meta-{group}{what}"))
}

impl fmt::Debug for RedisResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisResults").field("address", &self.client.address()).finish_non_exhaustive()
    }
}
