//! What a worker says at its start.

use std::fmt::Write as _;
use std::net::SocketAddr;

use tidegate_worker::{Mode, Settings};

use super::config::{Config, ModeSpec};

/// A command as it may be shown. Arguments can hold passwords and tokens, so only the program is shown, except for the
/// command that `--handler python:MODULE` stands for.
fn shortened(words: &[impl AsRef<str>]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words[..] {
        ["python3", "-m", "tidegate", "worker", _] | [_] => words.join(" "),
        [program, ..] => format!("{program} …"),
        [] => String::new(),
    }
}

pub(crate) fn banner(
    config: &Config,
    broker: &str,
    mode: &dyn Mode,
    metrics: Option<SocketAddr>,
    node: Option<&str>,
) -> String {
    let settings = &config.settings;
    let mut text = format!("tidegate worker {} at {broker}\n", settings.name);
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<10}{value}");
    };
    line("queues", &settings.queues.join(", "));
    let mut runs = format!("{}, {} at a time", mode.name(), mode.slots());
    if let Some(marks) = settings.watermarks {
        let _ = write!(runs, "; at {} no more until {}", marks.high, marks.low);
    }
    let prefetch = settings.prefetch.unwrap_or_else(|| Settings::prefetch_for(mode.slots()));
    let _ = write!(runs, "; {prefetch} held");
    line("mode", &runs);
    match &config.mode {
        ModeSpec::Process(options) => {
            let words: Vec<_> = options.command.iter().map(|word| word.to_string_lossy()).collect();
            line("runs", &shortened(&words));
        }
        ModeSpec::Coroutine { handlers, .. } | ModeSpec::Thread { handlers, .. } => {
            for (name, call) in handlers {
                line("handler", &format!("{name} = {}", call.describe()));
            }
        }
    }
    if let Some(pages) = &config.pages {
        line("handler", &pages.describe());
        line("quotas", &pages.limits());
    }
    let policy = &config.policy;
    let limit = |limit: Option<std::time::Duration>| limit.map_or("none".to_owned(), |limit| format!("{limit:?}"));
    line("limits", &format!("soft {}, hard {}", limit(policy.soft_limit), limit(policy.hard_limit)));
    line(
        "retries",
        &format!(
            "{} after {:?} to {:?}; dead-lettered after {} crashes; results kept {:?}",
            policy.retries_max, policy.backoff.min, policy.backoff.max, policy.crashes_max, policy.result_ttl
        ),
    );
    config.tasks.iter().for_each(|task| line("task", task.describe()));
    config.gates.iter().for_each(|gate| line("gate", &gate.text));
    settings.schedules.iter().for_each(|schedule| line("schedule", schedule.name()));
    if let Some(address) = metrics {
        line("pages", &format!("http://{address}/metrics, http://{address}/healthz"));
    }
    if let Some(node) = node {
        let results = config.result_backend.as_ref().map_or_else(
            || "rpc://".to_owned(),
            |(redis, expires)| match expires.is_zero() {
                true => format!("{redis}, kept for ever"),
                false => format!("{redis}, kept {expires:?}"),
            },
        );
        line("celery", &format!("node {node}; results at {results}"));
    }
    line("stop", &format!("SIGTERM or Ctrl-C: running tasks have {:?}; Ctrl-C again: at once", settings.warm_timeout));
    text
}
