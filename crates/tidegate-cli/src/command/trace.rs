//! `tidegate trace`: runs one of the loop's examples and shows what happened.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};
use tidegate_loop::STEPS_BETWEEN_POLLS;
use tidegate_loop::trace::Trace;
use tidegate_loop::trace::examples::{self, Example, Setting};

use crate::output::Output;
use crate::terminal;

/// Run a small program and show what the event loop did, tick by tick
///
/// The programs run in virtual time: a sleep of a second takes no time at all, and every run of the same command
/// prints the same bytes. The order of events is asyncio's.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "How to read it: a tick asks the selector (poll), then runs what was ready; what that makes ready waits \
                  for the next tick.\n\n\
                  Examples:\n  tidegate trace sleep\n  tidegate trace timeline --format html --out timeline.html    \
                  open it in a browser\n  tidegate trace timeline --format chrome --out timeline.json  open it at \
                  ui.perfetto.dev"
)]
pub(crate) struct Args {
    /// The program to run
    #[arg(value_name = "EXAMPLE", value_parser = PossibleValuesParser::new(names()))]
    example: Option<String>,

    /// List the programs and what each of them shows
    #[arg(long, conflicts_with_all = ["example", "out", "format", "seed", "relaxed", "strict", "code"])]
    list: bool,

    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Write to this file instead of the terminal
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Draw the order of equally ready tasks from this number: another number, another order; the same number, the same
    /// run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Ask the selector once a tick, exactly as asyncio does (the default)
    #[arg(long, overrides_with = "relaxed")]
    strict: bool,

    #[arg(long, help = relaxed_help())]
    relaxed: bool,

    /// Print the program before its trace (text only; the HTML page always shows it)
    #[arg(long)]
    code: bool,
}

fn names() -> impl Iterator<Item = PossibleValue> {
    examples::ALL.iter().map(|example| PossibleValue::new(example.name).help(example.summary))
}

fn relaxed_help() -> String {
    format!("Ask the selector only when nothing is ready, or every {STEPS_BETWEEN_POLLS} steps: the loop's own default")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines to read in a terminal
    Text,
    /// Chrome's trace events, for ui.perfetto.dev
    Chrome,
    /// A page with a timeline, for a browser
    Html,
}

/// What was asked for.
#[derive(Debug)]
enum Config {
    List,
    Run { example: &'static Example, setting: Setting, format: Format, code: bool, output: Output },
}

impl TryFrom<Args> for Config {
    type Error = anyhow::Error;

    fn try_from(args: Args) -> anyhow::Result<Config> {
        if args.list {
            return Ok(Config::List);
        }
        let name = args.example.with_context(|| {
            let names: Vec<&str> = examples::ALL.iter().map(|example| example.name).collect();
            format!("which example? One of {}; `tidegate trace --list` says what they show", names.join(", "))
        })?;
        let example = examples::find(&name)
            .with_context(|| format!("there is no example {name:?}; `tidegate trace --list` shows them"))?;
        Ok(Config::Run {
            example,
            setting: Setting { seed: args.seed, strict: !args.relaxed },
            format: args.format,
            code: args.code,
            output: Output::of(args.out),
        })
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match Config::try_from(args)? {
        Config::List => terminal::print(&list()),
        Config::Run { example, setting, format, code, output } => {
            let trace =
                example.record(&setting).map_err(|error| anyhow::anyhow!("the example did not run: {error}"))?;
            let shown = render(&trace, example, format, code);
            match format {
                Format::Chrome => output.write_json(&shown)?,
                Format::Text | Format::Html => output.write(&shown)?,
            }
            if let Output::File(path) = &output {
                terminal::say(format!("{} is written; {}", path.display(), what_next(format)));
            }
            Ok(())
        }
    }
}

fn list() -> String {
    let width = examples::ALL.iter().map(|example| example.name.len()).max().unwrap_or(0);
    examples::ALL.iter().map(|example| format!("{:width$}  {}\n", example.name, example.summary)).collect()
}

fn render(trace: &Trace, example: &Example, format: Format, code: bool) -> String {
    match format {
        Format::Text if code => format!("{}\n{}", example.source(), trace.to_text()),
        Format::Text => trace.to_text(),
        Format::Chrome => trace.to_chrome_json(),
        Format::Html => trace.to_html(),
    }
}

fn what_next(format: Format) -> &'static str {
    match format {
        Format::Text => "read it with any pager",
        Format::Chrome => "open it at https://ui.perfetto.dev",
        Format::Html => "open it in a browser",
    }
}
