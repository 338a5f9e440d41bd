//! `--handler`: what runs the tasks of a name.

use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::bail;
use serde_json::Value;
use tidegate_loop::{EventLoop, timeout_at};
use tidegate_secret::Secret;
use tidegate_worker::{
    BlockingHandler, BlockingHandlers, Exec, Handler, HandlerError, Handlers, HttpHandler, Inherited, Task, TaskContext,
};

/// One `--handler`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HandlerSpec {
    /// `NAME=exec:COMMAND` or `NAME=http://…`.
    Named(String, Call),
    /// `python:MODULE`: whatever tasks the module has.
    Python(String),
    /// `explain`: pages that others ask about.
    Explain,
}

/// What a handler calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Exec(String),
    Http(Secret),
}

impl FromStr for HandlerSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<HandlerSpec> {
        if text == "explain" {
            return Ok(HandlerSpec::Explain);
        }
        if let Some(module) = text.strip_prefix("python:") {
            if module.trim().is_empty() {
                bail!("python: names no module; write python:MODULE");
            }
            return Ok(HandlerSpec::Python(module.trim().to_owned()));
        }
        let Some((name, target)) = text.split_once('=') else {
            bail!("{text:?} is no handler; write NAME=exec:COMMAND, NAME=http://…, python:MODULE, or explain");
        };
        let name = name.trim().to_owned();
        if name.is_empty() {
            bail!("{text:?} has no name in front of its =");
        }
        let call = match target.split_once(':') {
            Some(("exec", command)) if !command.trim().is_empty() => Call::Exec(command.to_owned()),
            Some(("exec", _)) => bail!("{text:?} has no command behind exec:"),
            Some(("http" | "https", _)) => Call::Http(Secret::new(target)),
            Some(("python", _)) => bail!("a Python module brings its own names; write --handler {target}"),
            _ => bail!("{target:?} is nothing that could be called; write exec:COMMAND or http://…"),
        };
        Ok(HandlerSpec::Named(name, call))
    }
}

impl Call {
    fn handler(&self, inherited: &Inherited) -> Rc<dyn Handler> {
        match self {
            Call::Exec(command) => Rc::new(Exec::shell(command.clone()).inherited(inherited.clone())),
            Call::Http(url) => Rc::new(HttpHandler::new(url.expose())),
        }
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Call::Exec(command) => format!("exec:{}", program(command)),
            Call::Http(url) => without_secrets(url.expose()),
        }
    }
}

/// The most that is shown of a program's name.
const PROGRAM_CHARS: usize = 40;

/// A shell command as it may be shown: the program. Arguments and variables can hold passwords and tokens.
fn program(command: &str) -> String {
    let mut words = command.split_whitespace();
    let is_name = |word: &&str| !word.contains('=') && word.chars().count() <= PROGRAM_CHARS;
    match (words.next().filter(is_name), words.next()) {
        (Some(program), None) => program.to_owned(),
        (Some(program), Some(_)) => format!("{program} …"),
        (None, _) => "…".to_owned(),
    }
}

/// A URL as it may be shown: without user, password and query.
fn without_secrets(url: &str) -> String {
    let (url, query) = match url.split_once(['?', '#']) {
        Some((url, _)) => (url, "?…"),
        None => (url, ""),
    };
    let Some((scheme, rest)) = url.split_once("://") else { return format!("{url}{query}") };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://…@{host}{path}{query}"),
        None => format!("{scheme}://{host}{path}{query}"),
    }
}

pub(crate) fn handlers(named: &[(String, Call)], inherited: &Inherited) -> Handlers {
    named.iter().fold(Handlers::new(), |handlers, (name, call)| handlers.handler(name, call.handler(inherited)))
}

pub(crate) fn blocking_handlers(named: &[(String, Call)], inherited: &Inherited) -> BlockingHandlers {
    named.iter().fold(BlockingHandlers::new(), |handlers, (name, call)| {
        handlers.handler(name, Arc::new(InThread(call.clone(), inherited.clone())))
    })
}

/// A handler that wants a loop, on one of its own in a thread.
struct InThread(Call, Inherited);

impl BlockingHandler for InThread {
    fn call(&self, task: Task, context: TaskContext) -> Result<Value, HandlerError> {
        let (call, inherited) = (self.0.clone(), self.1.clone());
        let event_loop = EventLoop::new()?;
        let answer = event_loop.run_until_complete(async move {
            let run = call.handler(&inherited).call(task, context.clone());
            match context.hard_deadline() {
                // A little before the thread would be left behind: dropped, a command is killed and a connection closed.
                Some(at) => timeout_at(at, run).await.unwrap_or(Err(HandlerError::SoftLimit)),
                None => run.await,
            }
        });
        answer.map_err(|error| HandlerError::failed(error.to_string()))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_are_commands_urls_and_modules() {
        let parse = |text: &str| text.parse::<HandlerSpec>().unwrap();
        assert_eq!(parse("a.b=exec:cat -n"), HandlerSpec::Named("a.b".into(), Call::Exec("cat -n".into())));
        let url = "https://user:secret@host/x=1";
        assert_eq!(parse(&format!("h={url}")), HandlerSpec::Named("h".into(), Call::Http(url.into())));
        assert_eq!(parse("python:my.tasks"), HandlerSpec::Python("my.tasks".into()));
        assert_eq!(parse("explain"), HandlerSpec::Explain);
        assert_eq!(parse("explain=exec:cat"), HandlerSpec::Named("explain".into(), Call::Exec("cat".into())));
    }

    #[test]
    fn what_is_no_handler_says_what_would_be() {
        let error = |text: &str| text.parse::<HandlerSpec>().unwrap_err().to_string();
        assert!(error("cat").contains("NAME=exec:COMMAND"));
        assert!(error("=exec:cat").contains("no name"));
        assert!(error("a=exec:").contains("no command"));
        assert!(error("a=ftp://x").contains("nothing that could be called"));
        assert!(error("a=python:m").contains("--handler python:m"));
    }

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(Call::Http("http://me:secret@host/x".into()).describe(), "http://…@host/x");
        assert_eq!(Call::Http("http://me:s@cret@host/x".into()).describe(), "http://…@host/x");
        let call = Call::Http("http://me:secret@host/x".into());
        assert!(!format!("{call:?}").contains("secret"));
        assert_eq!(Call::Http("http://host/a@b".into()).describe(), "http://host/a@b");
        assert_eq!(Call::Http("http://host/a?key=secret@x#y".into()).describe(), "http://host/a?…");
    }

    #[test]
    fn a_command_is_shown_without_its_arguments() {
        let shown = |command: &str| Call::Exec(command.into()).describe();
        assert_eq!(shown("cat"), "exec:cat");
        assert_eq!(shown("./report.sh"), "exec:./report.sh");
        assert_eq!(shown("curl -H 'Authorization: Bearer secret' https://host"), "exec:curl …");
        assert_eq!(shown("TOKEN=secret curl https://host"), "exec:…");
        assert_eq!(shown(&"s".repeat(41)), "exec:…");
    }
}
