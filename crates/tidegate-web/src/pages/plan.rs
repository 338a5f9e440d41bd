//! The plan of a draft: how long it takes, what it costs, and which limit binds.

use std::time::Duration;

use maud::{Markup, PreEscaped, html};
use tidegate_batch::plan::PER_FILE;

use super::new::options;
use super::parts::{money_text, sentence, tokens_short};
use crate::format::{count, counted, duration};
use crate::jobs::{Job, JobKind, JobPlan, Jobs};
use crate::request::Form;

/// The plan of a draft with the values of a form, as the panel shows it.
pub(super) async fn plan(jobs: &Jobs, job: &Job, form: Option<&Form>) -> Markup {
    let mut job = job.clone();
    if let Some(form) = form {
        match options(form) {
            Ok(options) if job.kind != JobKind::Batch => job.options = options,
            Ok(_) => {}
            Err(wrong) => return html! { h2 #plan-h.small.dim { "Plan" } p role="status" { (sentence(&wrong)) } },
        }
        if let Some(upstream) = form.get("upstream") {
            upstream.clone_into(&mut job.upstream);
        }
    }
    if job.kind == JobKind::Batch && jobs.bad_lines(&job).is_some_and(|bad| bad.count > 0) {
        return html! { h2 #plan-h.small.dim { "Plan" } p role="status" { "These requests cannot be sent through this upstream as they are." } };
    }
    let (planned, unit) = (jobs.plan(&job).await, job.kind.unit());
    html! {
        @match planned {
            Err(reason) => { h2 #plan-h.small.dim { "Plan" } p role="status" { (sentence(&reason)) } }
            Ok(plan) if plan.pages == 0 => { h2 #plan-h.small.dim { "Plan" } p.sub role="status" { (unit.to_uppercase().get(..1).unwrap_or_default()) (unit.get(1..).unwrap_or_default()) "s are being counted." } }
            Ok(plan) => { (panel(&plan, unit)) }
        }
    }
}

fn panel(plan: &JobPlan, unit: &str) -> Markup {
    let time = Duration::try_from_secs_f64(plan.duration_s).unwrap_or_default();
    html! {
        div {
            h2 #plan-h.small.dim { "Plan · computed in " (plan.took_ms) " ms" }
            p.sentence role="status" data-plan-sentence {
                span { (counted(plan.pages, unit)) } " " span.sep { "·" } " " span { "about " (duration(time)) } br;
                @match &plan.bound_by {
                    Some(limit) => { span { "bound by " (limit_name(limit)) } }
                    None => { span { "no limit binds" } }
                }
                @if let Some(cost) = plan.cost { " " span.sep { "·" } " " span { "≈ " (money_text(cost)) } }
            }
        }
        div { (chart(plan, unit)) }
        div {
            dl.kv {
                dt { "Finishes" } dd { (duration(time)) " after the start" }
                dt { "To send" } dd { (counted(plan.pages, unit)) @if plan.settled > 0 { "; " (count(plan.settled)) " have a result" } }
                dt { "Tokens" } dd { "≈ " (tokens_short(plan.tokens_in)) " in · " (tokens_short(plan.tokens_out)) " out" }
                dt { "Answer time" } dd { "taken as " (duration(Duration::from_secs_f64(plan.answer_time_s))) " per " (unit) }
                dt { "At once" } dd { (counted(plan.in_flight_peak, "request")) " at most" }
                @if plan.too_large > 0 {
                    dt { "Too large" } dd.bad { (counted(plan.too_large, unit)) " can never be sent"
                        @if let Some(limit) = &plan.too_large_for { ": more than " (limit) " allows" } }
                }
            }
        }
    }
}

/// A limit of a plan, for people.
fn limit_name(limit: &str) -> &str {
    match limit {
        PER_FILE => "pages per file",
        "global" => "concurrency",
        limit => limit,
    }
}

/// Pages answered over time, and below it which limit binds.
fn chart(plan: &JobPlan, unit: &str) -> Markup {
    let (width, height) = (400.0, 104.0);
    let end = plan.duration_s.max(f64::MIN_POSITIVE);
    let x = |seconds: f64| (seconds / end * width).min(width);
    let mut line = format!("M0 {height}");
    for slice in &plan.timeline {
        line += &format!(
            "L{:.1} {:.1}",
            x(slice.to_s),
            height - slice.answered as f64 / plan.pages as f64 * (height - 4.0)
        );
    }
    let mut svg = format!(
        "<svg class=\"plot h120\" viewBox=\"0 0 400 120\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"Forecast: {} answered after {}\">\
         <path class=\"area\" d=\"{line}L{width} {height}Z\"/><path class=\"line\" d=\"{line}\"/>",
        counted(plan.pages, unit),
        duration(Duration::try_from_secs_f64(plan.duration_s).unwrap_or_default())
    );
    let mut from = 0.0;
    for slice in &plan.timeline {
        if slice.bound_by.is_some() {
            let wide = x(slice.to_s) - x(from);
            svg +=
                &format!("<rect class=\"f-block\" x=\"{:.1}\" width=\"{wide:.1}\" y=\"110\" height=\"10\"/>", x(from));
        }
        from = slice.to_s;
    }
    let limits: Vec<&str> = {
        let mut names: Vec<&str> = plan.timeline.iter().filter_map(|slice| slice.bound_by.as_deref()).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    html! {
        figure {
            div.chart { (PreEscaped(svg + "</svg>")) }
            div.axis aria-hidden="true" { span { "0" } span { (duration(Duration::try_from_secs_f64(plan.duration_s).unwrap_or_default())) } }
            figcaption { ul.legend {
                li { svg.key aria-hidden="true" { rect.f-soft width="100%" height="100%" {} } (unit) "s answered" }
                @if !limits.is_empty() {
                    li { svg.key aria-hidden="true" { rect.f-block width="100%" height="100%" {} } "bound by " (limits.iter().map(|limit| limit_name(limit)).collect::<Vec<_>>().join(", ")) }
                }
            } }
        }
    }
}
