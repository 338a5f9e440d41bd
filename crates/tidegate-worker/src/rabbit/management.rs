//! Policies that apply to a worker's queues, read from RabbitMQ's management HTTP API: AMQP does not show them. The answers are
//! untrusted: their size and the time they may take are bounded, and an error is a warning, never a stop.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Map, Value};
use tidegate_http::{Client, Timeouts};
use tidegate_loop::{Task, sleep, timeout};
use tidegate_secret::{Redactor, Secret, UserInfo};

/// For one answer, from the connection to its last byte.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// For all answers. The API shows the policy of a new queue with its first statistics, after up to 10 seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two requests for a policy that is not shown yet.
const PAUSE: Duration = Duration::from_secs(1);

/// A queue's description has about 2 KiB; its consumers are listed in it.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Longest name or value of a policy in a warning.
const SHOWN_MAX: usize = 200;

/// RabbitMQ's management HTTP API.
///
/// ```
/// use tidegate_worker::rabbit::Management;
///
/// let management = Management::new("http://guest:guest@localhost:15672");
/// assert!(!format!("{management:?}").contains("guest"));
/// ```
#[derive(Debug, Clone)]
pub struct Management {
    /// With user and password, if it has some: the client makes a header of them. Without a slash at the end.
    url: Secret,
    /// For what the API says: it may repeat what it was sent.
    redactor: Redactor,
    client: Client,
    patience: Duration,
}

/// What a queue is for, which decides what a policy does to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Tasks that can run. `dead_letters`: declared by tidegate with a dead-letter exchange.
    Tasks { dead_letters: bool },
    /// Dead letters; what the broker removes is lost.
    Dead,
    /// Delayed tasks. It may not exist yet.
    Delay,
}

/// A queue whose policy is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) queue: String,
    pub(super) role: Role,
}

/// A warning about a queue, or about the API itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Warning {
    pub(super) queue: Option<String>,
    /// The names of the policies.
    pub(super) policy: Option<String>,
    pub(super) text: String,
}

/// What the API says of a queue.
#[derive(Debug, PartialEq)]
enum Described {
    /// There is no such queue.
    Missing,
    /// The API has no statistics of the queue yet, and so shows no policy.
    NotYet,
    Policies(Policies),
}

#[derive(Debug, Default, PartialEq)]
struct Policies {
    names: Vec<String>,
    /// Of all policies that apply; `None` if the API shows names only.
    definition: Option<Map<String, Value>>,
    /// The queue's own arguments.
    arguments: Map<String, Value>,
}

/// The task that asks; ended when this is dropped.
pub(super) struct Asking(pub(super) Task);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Management {
    /// Asks at this URL, which may have a user and a password in it.
    pub fn new(url: &str) -> Management {
        Management::with_patience(url, ANSWER_PATIENCE, PATIENCE)
    }

    fn with_patience(url: &str, answer: Duration, patience: Duration) -> Management {
        let timeouts = Timeouts { connect: Some(answer), read: Some(answer), total: Some(answer) };
        let client = Client::builder().timeouts(timeouts).build().expect("the defaults name no file");
        let (_, user) = UserInfo::split(url);
        let redactor = Redactor::new(user.iter().flat_map(UserInfo::secrets).chain(client.secrets()));
        Management { url: Secret::new(url.trim_end_matches('/')), redactor, client, patience }
    }

    /// Asks for the policies of all queues, and logs what they do to tasks.
    pub(super) async fn log_policies(&self, vhost: &str, watched: Vec<Watched>) {
        self.warnings(vhost, watched, |warning| {
            let Warning { queue, policy, text } = warning;
            tracing::warn!(queue, policy, "{text}");
        })
        .await;
    }

    async fn warnings(&self, vhost: &str, mut watched: Vec<Watched>, mut warn: impl FnMut(Warning)) {
        let asked = timeout(self.patience, self.ask_all(vhost, &mut watched, &mut warn)).await;
        let error = match asked {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => format!("no answer has them after {} s", self.patience.as_secs_f32()),
        };
        let names: Vec<&str> = watched.iter().map(|watched| watched.queue.as_str()).collect();
        let text = format!("the policies of {} are not known: {error}", names.join(", "));
        warn(Warning { queue: None, policy: None, text });
    }

    /// Returns once the policies of all queues are known; `watched` has the others when this fails or is dropped.
    async fn ask_all(
        &self,
        vhost: &str,
        watched: &mut Vec<Watched>,
        warn: &mut impl FnMut(Warning),
    ) -> Result<(), String> {
        loop {
            let mut at = 0;
            while let Some(one) = watched.get(at) {
                match self.describe(vhost, &one.queue).await? {
                    Described::NotYet => {
                        at += 1;
                        continue;
                    }
                    Described::Missing if one.role == Role::Delay => {}
                    Described::Missing => {
                        return Err("there is no such queue, says the API; is the URL that of this broker?".to_owned());
                    }
                    Described::Policies(policies) => {
                        let policy = Some(shown(&policies.names.join(", ")));
                        for text in effects(one.role, &policies) {
                            warn(Warning { queue: Some(one.queue.clone()), policy: policy.clone(), text });
                        }
                    }
                }
                watched.remove(at);
            }
            if watched.is_empty() {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    }

    async fn describe(&self, vhost: &str, queue: &str) -> Result<Described, String> {
        let url = format!("{}/api/queues/{}/{}", self.url.expose(), encoded(vhost), encoded(queue));
        let answer = self.client.get(&url).await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        match status {
            200 => {}
            404 => return Ok(Described::Missing),
            401 | 403 => {
                return Err(format!(
                    "the API answers {status}; the URL needs a user with the tag management and a password: \
                     http://USER:PASSWORD@HOST:15672"
                ));
            }
            _ => return Err(format!("the API answers {status}")),
        }
        let body = answer.into_body().bytes_up_to(ANSWER_BYTES_MAX).await.map_err(|error| error.to_string())?;
        match self.redactor.redact_bytes(&body) {
            Some(clean) => read(&clean),
            None => read(&body),
        }
    }
}

/// Reads the description of a queue.
fn read(body: &[u8]) -> Result<Described, String> {
    let mut queue: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| format!("the answer is not a JSON object: {error}"))?;
    if !queue.contains_key("policy") {
        return Ok(Described::NotYet);
    }
    let name = |key: &str| queue.get(key).and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned);
    let names = name("policy").into_iter().chain(name("operator_policy")).collect();
    // Erlang writes an empty object as an empty list.
    let mut object = |key: &str| match queue.remove(key) {
        Some(Value::Object(object)) => Some(object),
        Some(Value::Array(list)) if list.is_empty() => Some(Map::new()),
        _ => None,
    };
    let (definition, arguments) = (object("effective_policy_definition"), object("arguments").unwrap_or_default());
    Ok(Described::Policies(Policies { names, definition, arguments }))
}

/// Returns what the policies do to the tasks of a queue, one sentence each.
fn effects(role: Role, policies: &Policies) -> Vec<String> {
    let Some(definition) = &policies.definition else {
        return match policies.names.is_empty() {
            true => Vec::new(),
            false => vec!["a policy applies to the queue, but the API does not show its definition".to_owned()],
        };
    };
    let mut found = Vec::new();
    let value = |key: &str| definition.get(key).map(|value| shown(&value.to_string()));
    let overflow = definition.get("overflow").or_else(|| policies.arguments.get("x-overflow")).and_then(Value::as_str);
    let dead_letters =
        definition.contains_key("dead-letter-exchange") || policies.arguments.contains_key("x-dead-letter-exchange");
    let (things, removed) = match role {
        Role::Tasks { dead_letters: true } => ("tasks", "become dead letters without having run"),
        Role::Tasks { .. } if dead_letters => ("tasks", "become dead letters without having run"),
        Role::Tasks { .. } => ("tasks", "are lost without having run"),
        Role::Dead => ("dead letters", "are lost"),
        Role::Delay => ("delayed tasks", "become due too early, or are lost"),
    };
    for (key, unit) in [("max-length", "messages"), ("max-length-bytes", "bytes")] {
        let Some(limit) = value(key) else { continue };
        let effect = match overflow {
            Some("reject-publish") if role == Role::Dead => {
                "while it is full, tasks to be dead-lettered stay with their worker".to_owned()
            }
            Some("reject-publish") => format!("while it is full, new {things} are refused"),
            Some("reject-publish-dlx") => {
                format!("while it is full, new {things} are refused, and each attempt leaves a dead letter")
            }
            _ => format!("when it is full, the oldest {things} {removed}"),
        };
        found.push(format!("a policy limits the queue to {limit} {unit} ({key}): {effect}"));
    }
    let falls_back = definition.get("overflow").is_some_and(|overflow| overflow != "reject-publish");
    if role == Role::Delay && falls_back {
        found.push(
            "a policy sets overflow for a delay queue: the broker hands delayed tasks on at most once, and may lose them"
                .to_owned(),
        );
    }
    if let Some(ttl) = value("message-ttl") {
        found.push(format!("a policy limits how long messages wait (message-ttl): after {ttl} ms {things} {removed}"));
    }
    if let Some(unused) = value("expires") {
        found.push(format!(
            "a policy deletes the queue with all {things} in it after {unused} ms without a consumer (expires)"
        ));
    }
    found
}

/// The beginning of a text that others have written, without control characters.
fn shown(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(SHOWN_MAX).collect()
}

/// `text` as one segment of a URL's path.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => all.push(char::from(byte)),
            // A segment of dots alone would be taken for a step in the path.
            _ => write!(all, "%{byte:02X}").expect("a String takes everything"),
        }
        all
    })
}

#[cfg(test)]
#[path = "management_tests.rs"]
mod tests;
