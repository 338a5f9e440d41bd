//! The page's parts. The same functions write the first page and its updates.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tidegate_limit::{LimitSnapshot, Snapshot};

use crate::chart::{self, SLOT_SECONDS, SLOTS};
use crate::format;
use crate::history::{History, Sample};
use crate::live::Values;

/// Scopes that are listed; the rest is counted.
const SCOPES_MAX: usize = 50;

/// An instant, and the time until then, which the browser counts down.
pub(super) fn when(at: SystemTime, now: SystemTime) -> Markup {
    let left = at.duration_since(now).unwrap_or_default();
    html! {
        time { (format::instant(at, now)) } ", in "
        span.v data-until=(format::millis(at)) { (format::countdown(left)) }
    }
}

/// How a limit is called in a sentence.
pub(super) fn limit_words(name: &str) -> &str {
    match name {
        "scopes" => "pages of a file",
        "global" => "concurrency",
        other => other,
    }
}

/// What a limit counts, in words.
fn meaning(limit: &LimitSnapshot) -> String {
    let known = match limit.name.as_str() {
        "rpm" => "requests per minute",
        "tpm" => "tokens per minute",
        "itpm" => "input tokens per minute",
        "otpm" => "output tokens per minute",
        "rpd" => "requests per day",
        "found" => "found from the server's refusals",
        _ => "",
    };
    match (known, &limit.dimension) {
        ("", Some(dimension)) => format!("{dimension} in a window"),
        ("", None) => "requests in flight at once".to_owned(),
        _ => known.to_owned(),
    }
}

/// Whether this is the limit that refusals reveal, and none has revealed it.
fn is_unknown(limit: &LimitSnapshot) -> bool {
    limit.dimension.as_deref() == Some("found") && limit.amount == 0
}

/// An upstream as the page shows it.
pub(super) struct Part<'a> {
    pub(super) at: usize,
    pub(super) name: &'a str,
    pub(super) gate: &'a Snapshot,
    pub(super) history: &'a History,
    pub(super) now: Duration,
}

impl Part<'_> {
    fn key(&self, what: &str, index: usize) -> String {
        format!("limits.{}.{what}.{index}", self.at)
    }

    pub(super) fn values(&self) -> Values {
        let mut values = Values::new();
        values.html(self.key("note", 0), self.note());
        values.html(self.key("scopes", 0), self.scopes());
        for (index, limit) in self.gate.limits.iter().enumerate() {
            values.attr(self.key("limit", index), "class", self.class(limit));
            values.html(self.key("now", index), self.current(limit));
            values.html(self.key("strip", index), self.strip(index, limit));
            values.html(self.key("figures", index), self.figures(limit));
        }
        values
    }

    pub(super) fn page(&self, names: &[&str], form: &Markup) -> Markup {
        let index = |limits: &[(usize, &LimitSnapshot)]| limits.iter().map(|(index, _)| *index).collect::<Vec<_>>();
        let all: Vec<(usize, &LimitSnapshot)> = self.gate.limits.iter().enumerate().collect();
        let (global, rates): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, limit)| limit.dimension.is_none());
        let (global, rates) = (index(&global), index(&rates));
        html! {
            div.head {
                div {
                    h1 { "Limits" }
                    p.sub { "A request passes all layers in one decision, or waits and holds nothing." }
                }
                @if names.len() > 1 {
                    nav.seg aria-label="Upstream" {
                        @for (at, name) in names.iter().enumerate() {
                            a href=(format!("/limits?u={}", encode(name))) aria-current=[(at == self.at).then_some("true")] { (name) }
                        }
                    }
                }
            }
            div role="status" data-h=(self.key("note", 0)) { (self.note()) }
            section.layer aria-labelledby="ly1" {
                div.sec-head {
                    span.layer-n aria-hidden="true" { "1" } h2 #ly1 { "Per file" }
                    span.dim.small { "pages of one file at once" }
                }
                div.boxed data-h=(self.key("scopes", 0)) { (self.scopes()) }
            }
            (self.layer(2, "Global", "all requests of this process", &global))
            (self.layer(3, "API quotas", &format!("of {}", self.name), &rates))
            div.sec-head.sec { (legend()) }
            @for &index in &rates { (self.twin(&self.gate.limits[index])) }
            (form)
        }
    }

    fn layer(&self, number: u8, title: &str, about: &str, limits: &[usize]) -> Markup {
        let id = format!("ly{number}");
        html! {
            section.layer aria-labelledby=(id) {
                div.sec-head {
                    span.layer-n aria-hidden="true" { (number) } h2 id=(id) { (title) } span.dim.small { (about) }
                }
                @if limits.is_empty() {
                    div.panel { p.sub { "No limit is stated here." } }
                }
                @for &index in limits { (self.article(index, &self.gate.limits[index])) }
            }
        }
    }

    fn article(&self, index: usize, limit: &LimitSnapshot) -> Markup {
        let id = format!("li-{index}");
        html! {
            article class=(self.class(limit)) data-a=(self.key("limit", index)) aria-labelledby=(id) {
                div {
                    h3 id=(id) { (limit_words(&limit.name)) " " span.tag.warn.binds-tag { "binds now" } }
                    p.small.dim { (meaning(limit)) }
                    div data-h=(self.key("now", index)) { (self.current(limit)) }
                }
                figure.tidewrap data-h=(self.key("strip", index)) { (self.strip(index, limit)) }
                dl.kv data-h=(self.key("figures", index)) { (self.figures(limit)) }
            }
        }
    }

    fn binds(&self, limit: &LimitSnapshot) -> bool {
        self.gate.blocked_by.as_deref() == Some(limit.name.as_str())
    }

    fn class(&self, limit: &LimitSnapshot) -> &'static str {
        if self.binds(limit) || limit.shut.is_some() { "limit binds" } else { "limit" }
    }

    /// The sentence that explains the page's state.
    fn note(&self) -> Markup {
        let gate = self.gate;
        if let Some((limit, reason)) = gate.limits.iter().find_map(|limit| Some((limit, limit.shut.as_ref()?))) {
            return html! {
                div.note.fail {
                    i.c.x aria-hidden="true" {}
                    div { p { strong { (limit_words(&limit.name)) " admits nothing: " } (reason) } }
                }
            };
        }
        let Some(name) = gate.blocked_by.as_deref() else {
            return html! {
                div.note {
                    i.c.i aria-hidden="true" {}
                    div { p { strong { "No limit binds. " } @if gate.current == 0 { "Nothing is in flight." } @else { "Every request is admitted at once." } } }
                }
            };
        };
        let waiting = gate.waiting as u64;
        let blocked: Duration = self.recent(name).iter().flatten().map(|sample| sample.blocked).sum();
        html! {
            div.note.block {
                i.c.b aria-hidden="true" {}
                div {
                    p {
                        strong { (limit_words(name)) @if name == "scopes" { " bind. " } @else { " binds. " } }
                        (format::counted(waiting, "request")) @if waiting == 1 { " waits" } @else { " wait" } " for it"
                        @match gate.next_admission {
                            Some(at) => { "; the next is admitted at " strong { (when(at, gate.at)) } "." }
                            None => { "; the next is admitted when one in flight ends." }
                        }
                        @if blocked >= Duration::from_secs(1) {
                            " In the last 10 minutes it was the binding limit for " strong { (format::duration(blocked)) } "."
                        }
                    }
                }
            }
        }
    }

    fn current(&self, limit: &LimitSnapshot) -> Markup {
        if is_unknown(limit) {
            return html! { p.now { small { "none found" } } p.small { "no refusal by the server has revealed one" } };
        }
        let used = limit.amount.saturating_sub(limit.remaining).max(limit.used.min(limit.amount));
        html! {
            p.now { (format::count(limit.used)) " " small { "of " (format::count(limit.amount)) } }
            (chart::gauge(used, limit.amount, limit.peak, self.binds(limit)))
            p.small {
                @if let Some(reason) = &limit.shut {
                    span.bad { "admits nothing: " (reason) }
                } @else if let Some(until) = limit.held_until {
                    "paused as the server asked until " span.strong { (when(until, self.gate.at)) }
                } @else if self.binds(limit) && let Some(at) = self.gate.next_admission {
                    "next room " span.strong { (format::instant(at, self.gate.at)) }
                } @else {
                    "room for " (format::count(limit.remaining))
                    @if limit.remaining < limit.amount.saturating_sub(limit.used) { ", as the server says" }
                }
            }
        }
    }

    fn recent(&self, limit: &str) -> Vec<Option<Sample>> {
        // Whole slots: the strip changes every two seconds, and its last slot is not half full.
        let slot = Duration::from_secs(SLOT_SECONDS);
        let whole = Duration::from_secs(self.now.as_secs() / SLOT_SECONDS * SLOT_SECONDS).saturating_sub(slot);
        self.history.recent(limit, whole, SLOT_SECONDS, SLOTS)
    }

    fn strip(&self, index: usize, limit: &LimitSnapshot) -> Markup {
        let samples = self.recent(&limit.name);
        let highest = samples.iter().flatten().map(|sample| sample.used).max().unwrap_or(0);
        let blocked: Duration = samples.iter().flatten().map(|sample| sample.blocked).sum();
        let refused: u64 = samples.iter().flatten().map(|sample| sample.refused).sum();
        let finding = format!(
            "{} over the last 10 minutes: highest {} of {}. {} {}",
            limit_words(&limit.name),
            format::count(highest),
            format::count(limit.amount),
            if blocked.is_zero() {
                "Never blocked.".to_owned()
            } else {
                format!("Blocked for {}.", format::duration(blocked))
            },
            if refused == 0 {
                "Never refused by the server.".to_owned()
            } else {
                format!("Refused {refused} times by the server.")
            },
        );
        chart::strip(&samples, &format!("strip-{index}"), &finding, self.gate.at)
    }

    fn figures(&self, limit: &LimitSnapshot) -> Markup {
        let is_rate = limit.dimension.is_some();
        let is_strict = is_rate && !self.gate.margin.is_zero();
        html! {
            dt { "Peak" } dd { (format::count(limit.peak)) }
            dt { "Total" } dd { (format::count(limit.total)) }
            dt { "Blocked" } dd { (format::counted(limit.blocked, "time")) }
            dt { "Blocked for" } dd { (format::duration(Duration::from_secs(limit.blocked_for.as_secs()))) }
            dt { "Refused (429)" } dd .bad[limit.pauses > 0] { (format::count(limit.pauses)) }
            dt { "Next reset" }
            dd {
                @match limit.next_reset {
                    Some(at) => { (format::instant(at, self.gate.at)) }
                    None if is_rate => { "–" }
                    None => { "on release" }
                }
            }
            dt { "Margin" } dd { @if is_strict { (format::duration(self.gate.margin)) } @else { "none" } }
        }
    }

    fn scopes(&self) -> Markup {
        let mut scopes: Vec<_> = self.gate.scopes.iter().filter_map(|scope| Some((scope, scope.cap?))).collect();
        let count = scopes.len();
        scopes.truncate(SCOPES_MAX);
        if scopes.is_empty() {
            return html! { p.empty.sub { "No file is open." } };
        }
        html! {
            table.t.cards {
                caption.vh { "Page concurrency of the open files" }
                thead {
                    tr {
                        th scope="col" { "File" } th scope="col" { "In flight of allowed" }
                        th.num scope="col" { "Now" } th.num scope="col" { "Peak" } th.num scope="col" { "Waiting" } th.num scope="col" { "Admitted" }
                    }
                }
                tbody {
                    @for (scope, cap) in scopes {
                        tr {
                            th scope="row" { (format::shortened(&scope.name, 80)) }
                            td { (chart::gauge(scope.current, cap, scope.peak, scope.current >= cap && scope.waiting > 0)) }
                            td.num data-l="now" { (format::count(scope.current)) " / " (format::count(cap)) }
                            td.num data-l="peak" { (format::count(scope.peak)) }
                            td.num data-l="waiting" { (format::count(scope.waiting as u64)) }
                            td.num data-l="admitted" { (format::count(scope.granted)) }
                        }
                    }
                }
            }
            @if count > SCOPES_MAX { p.pager { (format::counted((count - SCOPES_MAX) as u64, "more file")) } }
        }
    }

    /// The strip as a table, minute by minute, as of when the page was loaded.
    fn twin(&self, limit: &LimitSnapshot) -> Markup {
        let minutes = self.history.recent(&limit.name, self.now, 60, 10);
        let name = limit_words(&limit.name);
        html! {
            details.twin {
                summary { (name) " as a table" }
                div.boxed.scroll tabindex="0" role="region" aria-label=(format!("{name} by minute")) {
                    table.t {
                        caption.vh { (name) " of " (self.name) " by minute, when this page was loaded" }
                        thead { tr {
                            th scope="col" { "Minute" } th.num scope="col" { "Admitted" } th.num scope="col" { "Highest" }
                            th.num scope="col" { "Blocked for" } th.num scope="col" { "Refused" }
                        } }
                        tbody {
                            @for (ago, sample) in (0..10).rev().zip(minutes) {
                                @if let Some(sample) = sample {
                                    tr {
                                        th scope="row" { (format::minute(self.gate.at - Duration::from_secs(60 * ago))) }
                                        td.num { (format::count(sample.admitted)) }
                                        td.num { (format::count(sample.used)) }
                                        td.num { (format::duration(Duration::from_secs(sample.blocked.as_secs()))) }
                                        td.num { (format::count(sample.refused)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Writes `text` so that it can stand in a query.
pub(super) fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

fn legend() -> Markup {
    html! {
        ul.legend {
            li { svg.key aria-hidden="true" { rect.f-soft width="100%" height="100%" {} } "amount in the window" }
            li { svg.key viewBox="0 0 16 10" aria-hidden="true" { line.allowed x1="0" x2="16" y1="5" y2="5" {} } "allowed" }
            li { svg.key viewBox="0 0 16 10" aria-hidden="true" { path.adm d="M1 10V4h2v6zM6 10V1h2v9zM11 10V6h2v4z" {} } "admitted per 2 s" }
            li { svg.key aria-hidden="true" { rect.f-block width="100%" height="100%" {} } "blocked by this limit" }
            li { svg.key viewBox="0 0 16 10" aria-hidden="true" { rect.f-fail x="6" width="3" height="10" {} } "refused by the server (429)" }
            li { svg.key aria-hidden="true" { rect.f-skip width="100%" height="100%" {} } "paused as the server asked" }
        }
    }
}
