//! `tidegate provider`: a strict local LLM server to rehearse against.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tidegate_loop::signal::{SignalKind, signal};
use tidegate_loop::{EventLoop, Runner, When, sleep, spawn, wait};
use tidegate_rehearsal::{Counting, Faults, Handle, Latency, Limit, Refusals, Server, Window};
use tidegate_secret::Secret;

use crate::terminal;

/// How often the line in the terminal is written anew.
const REDRAW: Duration = Duration::from_millis(250);

/// Run a strict local LLM server, to rehearse against
///
/// It speaks as OpenAI (/v1/chat/completions, /v1/embeddings, /v1/models), Gemini (/v1beta/models/…:generateContent) and
/// Anthropic (/v1/messages) do, keeps its limits to the nanosecond, and answers with words of the prompt. What it saw is at
/// /rehearsal/stats; ?log=100 adds the last hundred requests.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate provider --rpm 100/2s --tpm 50000/2s --latency 50ms..200ms    a minute of two \
                  seconds\n  tidegate provider --rpm 60 --window bucket-full --fail 500=0.01,drop=0.01\n  \
                  tidegate provider --rpd 50 --refusals bare\n\nExit codes: 0 stopped (Ctrl-C), 2 could not run."
)]
pub(crate) struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7879")]
    listen: SocketAddr,

    /// Requests per minute, or in a shorter window: 100/2s
    #[arg(long, value_name = "N[/TIME]")]
    rpm: Option<Limit>,

    /// Tokens per minute, or in a shorter window: 50000/2s
    #[arg(long, value_name = "N[/TIME]")]
    tpm: Option<Limit>,

    /// Input tokens per minute, for providers that limit them separately: 30000/2s
    #[arg(long, value_name = "N[/TIME]")]
    itpm: Option<Limit>,

    /// Tokens of answers a minute, counted apart: 8000/2s
    #[arg(long, value_name = "N[/TIME]")]
    otpm: Option<Limit>,

    /// Requests per day
    #[arg(long, value_name = "N")]
    rpd: Option<u64>,

    /// How the minute counts: strict (any minute), bucket, bucket-full, aligned (from second 00)
    #[arg(long, value_name = "MODEL", default_value = "strict")]
    window: Window,

    /// Where the day begins at midnight
    #[arg(long, value_name = "ZONE", default_value = "America/Los_Angeles")]
    day_zone: String,

    /// Requests at once; more are refused
    #[arg(long, value_name = "N")]
    max_concurrency: Option<u64>,

    /// How long an answer takes: 200ms, 100ms..400ms, lognormal:800ms,0.5
    #[arg(long, value_name = "TIME", default_value = "0ms")]
    latency: Latency,

    /// What goes wrong, and how often: 500=0.01,503=0.01,529=0.01,garbage=0.01,hang=0.001,drop=0.01
    #[arg(long, value_name = "WHAT=SHARE,…")]
    fail: Option<Faults>,

    /// How a 429 looks: standard, bare (no word about when to come back), insufficient-quota, litellm
    #[arg(long, value_name = "SHAPE", default_value = "standard")]
    refusals: Refusals,

    /// Count refused requests against the requests per minute, too
    #[arg(long)]
    count_refused: bool,

    /// What a request counts against the tokens per minute: usage (what the answer reports), declared (max_tokens, as OpenAI does),
    /// input (the prompt alone), auto (usage; for Gemini and Anthropic input)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    count_tokens: Counting,

    /// Send no headers with what is left of the limits
    #[arg(long)]
    no_rate_headers: bool,

    /// The only key that is accepted; without it any is, or none
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    accept_key: Option<Secret>,

    /// A model there is; may be given several times. Without it there is any
    #[arg(long = "known-model", value_name = "NAME")]
    known_models: Vec<String>,

    /// Draw latencies and failures from this number: the same number, the same run
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Args {
    fn server(self) -> tidegate_rehearsal::Builder {
        let mut server = Server::builder()
            .listen(self.listen)
            .latency(self.latency)
            .faults(self.fail.unwrap_or_default())
            .refusals(self.refusals)
            .refusals_count(self.count_refused)
            .counting(self.count_tokens)
            .rate_headers(!self.no_rate_headers)
            .models(self.known_models)
            .seed(self.seed);
        if let Some(limit) = self.rpm {
            server = server.rpm(limit.window(self.window.clone()));
        }
        if let Some(limit) = self.tpm {
            server = server.tpm(limit.window(self.window.clone()));
        }
        if let Some(limit) = self.itpm {
            server = server.itpm(limit.window(self.window.clone()));
        }
        if let Some(limit) = self.otpm {
            server = server.otpm(limit.window(self.window.clone()));
        }
        if let Some(amount) = self.rpd {
            server = server.rpd(Limit::new(amount).window(Window::Day(self.day_zone)));
        }
        if let Some(limit) = self.max_concurrency {
            server = server.concurrency(limit);
        }
        if let Some(key) = self.accept_key {
            server = server.api_key(key);
        }
        server
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    crate::descriptors::raise_limit();
    let builder = args.server();
    let event_loop = EventLoop::new().context("the event loop did not start")?;
    // Ctrl-C is this command's own end, not a cancellation.
    let runner = Runner::new(event_loop).ctrl_c(false);
    let served = runner.run(async move {
        let mut ends = [SignalKind::INTERRUPT, SignalKind::TERMINATE]
            .map(|kind| signal(kind).map(|mut signal| spawn(async move { signal.recv().await })))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .context("cannot listen for Ctrl-C")?;
        let server = builder.start().await?;
        terminal::print(&greeting(&server))?;
        let drawn = terminal::err_is_terminal();
        if drawn {
            let watched = server.clone();
            ends.push(spawn(async move {
                loop {
                    terminal::redraw(watched.stats());
                    sleep(REDRAW).await;
                }
            }));
        }
        wait(&ends, When::FirstCompleted, None).await.map_err(|_| anyhow!("there is nothing to wait for"))?;
        server.stop().await;
        if drawn {
            terminal::redraw("stopping: answers that are on their way are finished");
            terminal::say("");
        }
        terminal::print(&format!("{}\n", server.stats()))
    });
    served.map_err(|error| anyhow!("the server did not run: {error}"))?
}

fn greeting(server: &Handle) -> String {
    let base = server.base_url();
    format!(
        "{base}/v1      OpenAI\n{base}          Gemini, Anthropic\n{base}/rehearsal/stats\n\nTry it:\n  curl -s \
         {base}/v1/chat/completions -d '{{\"model\":\"any\",\"messages\":[{{\"role\":\"user\",\"content\":\"Why do tides \
         turn?\"}}]}}'\n\nCtrl-C stops it.\n"
    )
}
