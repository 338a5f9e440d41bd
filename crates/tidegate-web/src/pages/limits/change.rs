//! Changing limits: a form that first answers with the new finish time, then applies.
//!
//! Trying is a GET with the amounts in the query, so it works without a script and changes nothing; the answer holds the form
//! that applies exactly these amounts.

use std::time::{Duration, SystemTime};

use http::Method;
use maud::{Markup, html};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_limit::{LimitSnapshot, Snapshot};

use super::view::{encode, limit_words};
use super::{Limits, Steer};
use crate::answer::{Answer, Failure};
use crate::api::Doc;
use crate::format;
use crate::request::Request;
use crate::site::Site;

/// A limit and the amount to try.
struct Change<'a> {
    limit: &'a LimitSnapshot,
    to: u64,
}

/// Limits that can be stated; what was found from refusals cannot.
fn stated(gate: &Snapshot) -> impl Iterator<Item = &LimitSnapshot> {
    gate.limits.iter().filter(|limit| limit.dimension.as_deref() != Some("found"))
}

/// `300`, `600,000`, `600 000`.
fn amount(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|c| !matches!(c, ',' | ' ' | '\u{a0}' | '\'' | '_')).collect();
    digits.parse().ok().filter(|&amount| amount > 0)
}

/// The amounts in a request that differ from those in force.
fn changes<'a>(gate: &'a Snapshot, value: impl Fn(&str) -> Option<String>) -> Result<Vec<Change<'a>>, Failure> {
    let mut changes = Vec::new();
    for limit in stated(gate) {
        let Some(text) = value(&limit.name) else { continue };
        let to = amount(&text);
        let to =
            to.ok_or_else(|| Failure::bad_request(format!("{} needs a number above 0.", limit_words(&limit.name))))?;
        if to != limit.amount {
            changes.push(Change { limit, to });
        }
    }
    Ok(changes)
}

/// A field's name: limits have names of their own, so theirs are marked.
fn field(limit: &str) -> String {
    format!("to-{limit}")
}

/// The section of the page; empty for upstreams whose limits cannot be changed.
pub(super) fn form(limits: &Limits, at: usize, gate: &Snapshot, request: &Request) -> Markup {
    let upstream = &limits.0.upstreams[at];
    let Some(steer) = upstream.steer.as_ref().filter(|_| request.may_act()) else { return html! {} };
    let wanted = changes(gate, |name| request.query(&field(name)));
    let value =
        |limit: &LimitSnapshot| request.query(&field(&limit.name)).unwrap_or_else(|| format::count(limit.amount));
    html! {
        section.sec.panel #whatif aria-labelledby="wi-h" {
            h2 #wi-h { "What if…" }
            div.whatif {
                form method="get" action="/limits#whatif" data-preview="answer" aria-label="Limits to try" {
                    input type="hidden" name="u" value=(upstream.name);
                    div.fields.three {
                        @for (index, limit) in stated(gate).enumerate() {
                            div.field {
                                label for=(format!("w-{index}")) { (limit_words(&limit.name)) }
                                input.num id=(format!("w-{index}")) type="text" inputmode="numeric" autocomplete="off" name=(field(&limit.name)) value=(value(limit));
                                span.hint { "now " (format::count(limit.amount)) }
                            }
                        }
                    }
                    div.btns.effect data-without-script { button.btn { "Show the effect" } }
                }
                div.answer.stack #answer role="status" {
                    @match &wanted {
                        Err(failure) => { p.bad { (failure.message()) } }
                        Ok(wanted) if wanted.is_empty() => { p.sub { "Change a number to see when the work would be done." } }
                        Ok(wanted) => { (answer(&**steer, (at, &upstream.name), wanted)) }
                    }
                }
            }
            p.cap { "Computed from the gate's own windows. Raising a limit above what the provider grants leads to refusals (429), not to speed." }
        }
    }
}

fn answer(steer: &dyn Steer, (at, upstream): (usize, &str), wanted: &[Change<'_>]) -> Markup {
    let amounts: Vec<(&str, u64)> = wanted.iter().map(|change| (change.limit.name.as_str(), change.to)).collect();
    let (now, then) = (steer.time_left(&[]), steer.time_left(&amounts));
    let clock = SystemTime::now();
    let shown = |left: Option<Duration>| left.map_or("unknown".to_owned(), |left| format::instant(clock + left, clock));
    html! {
        p.big {
            @match (now, then) {
                (Some(now), Some(then)) => {
                    "Done " (shown(Some(then)))
                    @if now > then + Duration::from_secs(1) { ", " (format::duration(now - then)) " earlier" }
                    @else if then > now + Duration::from_secs(1) { ", " (format::duration(then - now)) " later" }
                    @else { ", as now" }
                }
                (_, Some(then)) => { "Done " (shown(Some(then))) }
                (Some(_), None) => { "Never done with these limits" }
                (None, None) => { "Nothing waits: no finish time changes" }
            }
        }
        dl.kv.small {
            @for change in wanted {
                dt { (limit_words(&change.limit.name)) }
                dd { (format::count(change.limit.amount)) " → " (format::count(change.to)) }
            }
            @if now.is_some() || then.is_some() { dt { "Now" } dd { (shown(now)) } dt { "Then" } dd { (shown(then)) } }
        }
        form method="post" action="/limits" {
            input type="hidden" name="u" value=(at);
            @for change in wanted { input type="hidden" name=(field(&change.limit.name)) value=(change.to); }
            div.btns {
                button.btn.primary { "Apply " (format::counted(wanted.len() as u64, "change")) }
                a.btn.quiet href=(format!("/limits?u={}", encode(upstream))) { "Reset" }
            }
        }
    }
}

/// Amounts to set, by the names of the limits.
#[derive(Debug, Deserialize, JsonSchema)]
struct Amounts {
    /// The upstream's name.
    upstream: String,
    /// The new amount of each limit that changes.
    allowed: std::collections::BTreeMap<String, u64>,
    /// Returns the effect without applying it.
    #[serde(default)]
    dry_run: bool,
}

/// What a change does to the work that waits.
#[derive(Debug, Serialize, JsonSchema)]
struct Effect {
    /// Whether the amounts were set.
    applied: bool,
    /// Seconds until the work that waits is done, as things were.
    seconds_left_before: Option<f64>,
    /// Seconds with the new amounts.
    seconds_left: Option<f64>,
}

fn apply(steer: &dyn Steer, wanted: &[Change<'_>]) -> Result<(), Failure> {
    wanted.iter().try_for_each(|change| steer.set(&change.limit.name, change.to)).map_err(Failure::conflict)
}

fn audit_line(upstream: &str, wanted: &[Change<'_>]) -> String {
    let changes = wanted.iter().map(|change| format!("{} {} -> {}", change.limit.name, change.limit.amount, change.to));
    format!("{upstream}: {}", changes.collect::<Vec<_>>().join(", "))
}

pub(super) fn mount(limits: &Limits, site: &mut Site) {
    if limits.0.upstreams.iter().all(|upstream| upstream.steer.is_none()) {
        return;
    }
    let own = limits.clone();
    site.post("/limits", "change limits", move |mut request: Request| {
        let limits = own.clone();
        async move {
            let form = request.form().await?;
            let at = form.get("u").and_then(|at| at.parse().ok()).filter(|&at: &usize| at < limits.0.upstreams.len());
            let at = at.ok_or_else(|| Failure::not_found("There is no such upstream."))?;
            let upstream = &limits.0.upstreams[at];
            let steer = upstream.steer.as_ref().ok_or_else(fixed)?;
            let gate = upstream.admission.stats();
            let wanted = changes(&gate, |name| form.get(&field(name)).map(str::to_owned))?;
            request.audit(audit_line(&upstream.name, &wanted));
            apply(&**steer, &wanted)?;
            *limits.0.look.borrow_mut() = None;
            Ok(Answer::see_other(&format!("/limits?u={}", encode(&upstream.name))))
        }
    });
    let own = limits.clone();
    let doc = Doc::new("Change limits, or foretell what a change would do")
        .error(404, "There is no such upstream or limit.")
        .error(409, "These limits cannot be changed.");
    site.api_action(
        Method::POST,
        "/api/v1/limits",
        "change limits",
        &doc,
        move |request: Request, amounts: Amounts| {
            let limits = own.clone();
            async move {
                let at = limits.find(Some(&amounts.upstream))?;
                let upstream = &limits.0.upstreams[at];
                let steer = upstream.steer.as_ref().ok_or_else(fixed)?;
                let gate = upstream.admission.stats();
                if let Some(name) = amounts.allowed.keys().find(|name| !stated(&gate).any(|limit| limit.name == **name))
                {
                    return Err(Failure::not_found(format!("There is no limit {name:?}.")));
                }
                let wanted = changes(&gate, |name| amounts.allowed.get(name).map(u64::to_string))?;
                let pairs: Vec<(&str, u64)> =
                    wanted.iter().map(|change| (change.limit.name.as_str(), change.to)).collect();
                let seconds = |left: Option<Duration>| left.map(|left| left.as_secs_f64());
                let (before, after) = (seconds(steer.time_left(&[])), seconds(steer.time_left(&pairs)));
                if amounts.dry_run {
                    request.audit("dry run");
                } else {
                    request.audit(audit_line(&upstream.name, &wanted));
                    apply(&**steer, &wanted)?;
                    *limits.0.look.borrow_mut() = None;
                }
                Ok(Effect { applied: !amounts.dry_run, seconds_left_before: before, seconds_left: after })
            }
        },
    );
}

fn fixed() -> Failure {
    Failure::conflict("The limits of this upstream cannot be changed here.")
}

#[cfg(test)]
mod tests {
    use super::amount;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        assert_eq!(amount("600,000"), Some(600_000));
        assert_eq!(amount(" 1 500 "), Some(1_500));
        for text in ["", "0", "-5", "many", "1.5", "99999999999999999999999"] {
            assert_eq!(amount(text), None, "{text}");
        }
    }
}
