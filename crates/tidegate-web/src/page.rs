//! The shell around every page: navigation, the system strip, the colours; and the error pages.

use http::StatusCode;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::answer::Failure;
use crate::assets;
use crate::server::Shared;

/// A page as a handler returns it: what stands in `<main>` below the system strip.
#[derive(Debug)]
pub struct Page {
    pub(crate) title: String,
    pub(crate) body: Markup,
    pub(crate) topics: Vec<String>,
    pub(crate) scripts: Vec<&'static str>,
    pub(crate) status: StatusCode,
}

impl Page {
    /// A page of this title.
    #[must_use]
    pub fn new(title: impl Into<String>, body: Markup) -> Page {
        Page { title: title.into(), body, topics: Vec::new(), scripts: Vec::new(), status: StatusCode::OK }
    }

    /// Keeps the page's [live](crate::live) parts up to date with this topic.
    #[must_use]
    pub fn live(mut self, topic: impl Into<String>) -> Page {
        self.topics.push(topic.into());
        self
    }

    /// Adds a module of the assets, such as `grid.js`.
    #[must_use]
    pub fn script(mut self, name: &'static str) -> Page {
        self.scripts.push(name);
        self
    }
}

/// The colours a visitor chose, from a cookie, so that they are in the first byte of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Theme {
    /// As the system prefers.
    #[default]
    Auto,
    /// Always light.
    Light,
    /// Always dark.
    Dark,
}

impl Theme {
    pub(crate) const ALL: [Theme; 3] = [Theme::Auto, Theme::Light, Theme::Dark];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Theme::Auto => "auto",
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Theme::Auto => "Auto",
            Theme::Light => "Light",
            Theme::Dark => "Dark",
        }
    }

    pub(crate) fn of(name: &str) -> Option<Theme> {
        Theme::ALL.into_iter().find(|theme| theme.name() == name)
    }
}

/// What the shell has to know about the request it answers.
#[derive(Debug)]
pub(crate) struct Visit<'a> {
    pub(crate) path_and_query: &'a str,
    pub(crate) theme: Theme,
    pub(crate) may_act: bool,
}

const MARK: PreEscaped<&str> = PreEscaped(
    r#"<svg class="mark" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path class="mark-water" d="M1 8.6c1.6-1.5 3.2-1.5 4.8 0 1.2 1.1 2.2 1.3 3.2.9V21H3a2 2 0 0 1-2-2z"/><path class="mark-low" d="M15 14.6c1.2-1 2.6-1 4 .2s2.7 1.2 4 .2V19a2 2 0 0 1-2 2h-6z"/><path class="mark-gate" d="M10.5 2h3v20h-3z"/></svg>"#,
);

const PATTERNS: PreEscaped<&str> = PreEscaped(
    r#"<svg class="vh" aria-hidden="true" focusable="false"><defs><pattern id="hatch-block" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="3" height="6" class="f-block"/></pattern><pattern id="hatch-skip" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="6" class="f-skip"/></pattern></defs></svg>"#,
);

fn head(title: &str, scripts: &[&str]) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) " · tidegate" }
            link rel="icon" href=(assets::path("mark.svg")) type="image/svg+xml";
            link rel="stylesheet" href=(assets::path("style.css"));
            @for script in scripts { script type="module" src=(assets::path(script)) {} }
        }
    }
}

/// Writes a whole page.
pub(crate) fn render(shared: &Shared, visit: &Visit<'_>, page: &Page) -> Markup {
    let mut scripts = vec!["app.js"];
    scripts.extend(&page.scripts);
    let mut topics = vec!["sys"];
    topics.extend(page.topics.iter().map(String::as_str));
    let theme = (visit.theme != Theme::Auto).then(|| visit.theme.name());
    let path = visit.path_and_query.split(['?', '#']).next().unwrap_or_default();
    html! {
        (DOCTYPE)
        html lang="en" data-theme=[theme] data-utc-offset=(crate::format::utc_offset()) {
            (head(&page.title, &scripts))
            body data-live=(topics.join(",")) data-read-only[!visit.may_act] {
                a.skip-link href="#main" { "Skip to the content" }
                (PATTERNS)
                div.shell {
                    header.rail {
                        a.brand href="/" { (MARK) "tidegate" }
                        (navigation(shared, path))
                        div.rail-foot {
                            form method="post" action="/theme" {
                                input type="hidden" name="back" value=(visit.path_and_query);
                                div.seg.wide role="group" aria-label="Colours" {
                                    @for choice in Theme::ALL {
                                        button name="theme" value=(choice.name()) aria-pressed=(choice == visit.theme) {
                                            (choice.label())
                                        }
                                    }
                                }
                            }
                            p {
                                (shared.address()) " · " (env!("CARGO_PKG_VERSION")) br;
                                "Times: " (crate::format::zone_name())
                                @if !visit.may_act { br; "Read-only" }
                            }
                        }
                    }
                    main.main #main {
                        section aria-label="Whole system" {
                            dl.sys {
                                div.live {
                                    dt { "Live" }
                                    dd.keep { span.live-dot aria-hidden="true" {} time data-clock { (crate::format::time_now()) } }
                                }
                                @for cell in shared.strip() { (cell) }
                            }
                        }
                        div.note.block.stale-note role="status" hidden {
                            i.c.b aria-hidden="true" {}
                            div { p { b { "No connection to tidegate" } span data-stale-since {} ". What you see is from then. \
                                 The page reconnects by itself; actions wait until it has." } }
                        }
                        noscript { p.small.dim.noscript { "Without JavaScript values do not update by themselves; reload the page." } }
                        (page.body)
                    }
                }
            }
        }
    }
}

fn navigation(shared: &Shared, path: &str) -> Markup {
    // The longest entry that is the path or a part of its beginning.
    let is_under = |href: &str| path == href || path.strip_prefix(href).is_some_and(|rest| rest.starts_with('/'));
    let current =
        shared.nav().iter().map(|entry| entry.href).filter(|href| is_under(href)).max_by_key(|href| href.len());
    let mut groups: Vec<&str> = Vec::new();
    for entry in shared.nav() {
        if !groups.contains(&entry.group) {
            groups.push(entry.group);
        }
    }
    html! {
        nav.nav aria-label="Main" {
            @for group in groups {
                h2 { (group) }
                @for entry in shared.nav().iter().filter(|entry| entry.group == group) {
                    a href=(entry.href) aria-current=[(current == Some(entry.href)).then_some("page")] {
                        (entry.title)
                        @if let Some(key) = entry.count { span.n data-v=(key) { (shared.text_of(key)) } }
                    }
                }
            }
        }
    }
}

/// The title and the way out of a status.
fn explain(status: StatusCode) -> (&'static str, &'static str) {
    match status {
        StatusCode::NOT_FOUND => ("Page not found", "Check the address, or start from the navigation."),
        StatusCode::FORBIDDEN => ("Refused", "Open the page directly, not from another site."),
        StatusCode::UNAUTHORIZED => ("Sign in", "Enter the token of this server."),
        StatusCode::TOO_MANY_REQUESTS => ("Too many attempts", "Wait, then try again."),
        StatusCode::PAYLOAD_TOO_LARGE => ("Too large", "Send less at once."),
        StatusCode::METHOD_NOT_ALLOWED => ("Not possible here", "Go back and use the page's buttons."),
        StatusCode::CONFLICT => ("Not possible now", "Reload the page to see the current state."),
        status if status.is_server_error() => ("Server error", "Reload the page; if it stays, see the server's log."),
        _ => ("Request refused", "Go back and correct the input."),
    }
}

/// An error page within the shell, for requests that the guard admitted.
pub(crate) fn failure(failure: &Failure) -> Page {
    let (title, way_out) = explain(failure.status);
    let body = html! {
        div.message {
            p.crumb { "Error " (failure.status.as_u16()) }
            h1 { (title) }
            p.lede { (failure.message) }
            p.sub { (way_out) }
            div.btns { a.btn.primary href="/" { "To the start page" } }
        }
    };
    let mut page = Page::new(title, body);
    page.status = failure.status;
    page
}

/// An error page without anything of the site on it, for a request that was not let through; asks for the token if one is
/// needed. Goes back to `back` afterwards.
pub(crate) fn bare_failure(failure: &Failure, theme: Theme, back: &str) -> Markup {
    let (title, way_out) = explain(failure.status);
    let theme = (theme != Theme::Auto).then(|| theme.name());
    html! {
        (DOCTYPE)
        html lang="en" data-theme=[theme] {
            (head(title, &[]))
            body {
                main.bare #main {
                    div.brand { (MARK) "tidegate" }
                    div.panel.message {
                        h1 { (title) }
                        p.sub { (failure.message) }
                        @if failure.status == StatusCode::UNAUTHORIZED {
                            form.stack method="post" action="/login" {
                                input type="hidden" name="back" value=(back);
                                div.field {
                                    label for="token" { "Token" }
                                    input #token type="password" name="token" autocomplete="current-password" required autofocus;
                                    span.hint { "It was printed as a link when the server started, or is in its token file." }
                                }
                                div.btns { button.btn.primary { "Sign in" } }
                            }
                        } @else {
                            p.small.dim { (way_out) }
                        }
                    }
                }
            }
        }
    }
}
