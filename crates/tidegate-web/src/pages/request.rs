//! A request of a file, as the reader shows it beside its answer: who says what in it, and its body.

use maud::{Markup, html};

use super::reader::marked;
use crate::jobs::RequestText;

/// The request. Everything in it comes from the file and is shown as text.
pub(super) fn pane(request: &RequestText, sought: &str) -> Markup {
    let text = |text: &str| marked(&html! { (text) }.into_string(), sought);
    html! {
        section.request aria-labelledby="rq-h" {
            header.version {
                h2 #rq-h { (text(&request.custom_id)) }
                p.meta {
                    @if let Some(model) = &request.model { span { (model) } }
                    @if !request.url.is_empty() { span { code { (request.url) } } }
                }
            }
            @for message in &request.messages {
                div.turn { h3.small { (message.role) } p.said dir="auto" { (text(&message.text)) } }
            }
            details.twin open[request.messages.is_empty()] {
                summary { "Body" }
                pre.body tabindex="0" { (request.body) }
            }
        }
    }
}
