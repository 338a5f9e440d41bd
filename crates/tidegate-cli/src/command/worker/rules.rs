//! Rules for tasks, as they are written on the command line.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tidegate_worker::{Backoff, Policy};

use crate::span::span;

/// `MIN..MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackoffRange(pub(crate) Backoff);

impl FromStr for BackoffRange {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<BackoffRange> {
        let (min, max) = text.split_once("..").with_context(|| format!("{text:?} is no range; write 1s..10m"))?;
        let (min, max) = (span(min)?, span(max)?);
        if min > max {
            bail!("{text:?} goes backwards");
        }
        Ok(BackoffRange(Backoff { min, max }))
    }
}

/// `NAME KEY=VALUE…`: the rules of one task.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TaskPolicy {
    name: String,
    text: String,
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq)]
enum Rule {
    Retries(u32),
    Backoff(Backoff),
    Crashes(u32),
    SoftLimit(Duration),
    HardLimit(Duration),
    ResultTtl(Duration),
}

impl FromStr for TaskPolicy {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<TaskPolicy> {
        let mut words = text.split_whitespace();
        let name = words.next().filter(|word| !word.contains('=')).context("rules begin with the task's name")?;
        let rules = words.map(rule).collect::<anyhow::Result<Vec<Rule>>>()?;
        if rules.is_empty() {
            bail!("{text:?} has no rules; write {name} retries=5 hard-limit=20s");
        }
        Ok(TaskPolicy { name: name.to_owned(), text: text.to_owned(), rules })
    }
}

fn rule(word: &str) -> anyhow::Result<Rule> {
    let (key, value) = word.split_once('=').with_context(|| format!("{word:?} is no KEY=VALUE"))?;
    let number = || value.parse::<u32>().with_context(|| format!("{word:?} has no whole number"));
    Ok(match key {
        "retries" => Rule::Retries(number()?),
        "crashes" => Rule::Crashes(number()?),
        "backoff" => Rule::Backoff(value.parse::<BackoffRange>()?.0),
        "soft-limit" => Rule::SoftLimit(span(value)?),
        "hard-limit" => Rule::HardLimit(span(value)?),
        "result-ttl" => Rule::ResultTtl(span(value)?),
        _ => bail!("{key:?} is no rule; there are retries, backoff, crashes, soft-limit, hard-limit, result-ttl"),
    })
}

impl TaskPolicy {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn describe(&self) -> &str {
        &self.text
    }

    /// These rules over those for all tasks.
    pub(super) fn over(&self, all: &Policy) -> anyhow::Result<Policy> {
        let mut policy = all.clone();
        for rule in &self.rules {
            match *rule {
                Rule::Retries(count) => policy.retries_max = count,
                Rule::Backoff(backoff) => policy.backoff = backoff,
                Rule::Crashes(count) => policy.crashes_max = count.max(1),
                Rule::SoftLimit(limit) => policy.soft_limit = Some(limit),
                Rule::HardLimit(limit) => policy.hard_limit = Some(limit),
                Rule::ResultTtl(ttl) => policy.result_ttl = ttl,
            }
        }
        check_limits(&format!("task {}", self.name), policy.soft_limit, policy.hard_limit)?;
        Ok(policy)
    }
}

pub(super) fn check_limits(whose: &str, soft: Option<Duration>, hard: Option<Duration>) -> anyhow::Result<()> {
    if [soft, hard].into_iter().flatten().any(|limit| limit.is_zero()) {
        bail!("a limit of no time for {whose} would end every task before it begins");
    }
    match (soft, hard) {
        (Some(soft), Some(hard)) if soft >= hard => {
            bail!("the soft limit of {whose} ({soft:?}) must be below its hard one ({hard:?})")
        }
        _ => Ok(()),
    }
}
