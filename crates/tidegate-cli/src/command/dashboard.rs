//! `--dashboard`: the web page about a run, served by the run itself.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::anyhow;
use tidegate_batch::Control;
use tidegate_limit::Admission;
use tidegate_loop::{JoinHandle, sleep, spawn};
use tidegate_web::{EventLoop, Limits, Options, Site, Steer, Stopper, Token, Upstream};

use crate::progress::Reporter;

/// Where `--help` lists the options.
const HEADING: &str = "Dashboard";

/// The dashboard
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DashboardArgs {
    /// Show limits and event loop of this run in a browser, at 127.0.0.1:7433 or --dashboard=ADDR; port 0 takes a free one
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "ADDR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:7433"
    )]
    dashboard: Option<SocketAddr>,

    /// File with the token that visitors must bring, at least 16 characters; without it an address that other machines can
    /// reach gets a random token, printed once as a link
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "dashboard")]
    dashboard_token_file: Option<PathBuf>,

    /// Host name that visitors may use besides the address (repeatable)
    #[arg(long, help_heading = HEADING, value_name = "NAME", requires = "dashboard")]
    dashboard_host: Vec<String>,

    /// Refuse every change through the dashboard
    #[arg(long, help_heading = HEADING, requires = "dashboard")]
    dashboard_read_only: bool,
}

/// Changes the limits of a live run.
struct RunLimits {
    gate: Admission,
    control: Control,
}

impl Steer for RunLimits {
    fn time_left(&self, amounts: &[(&str, u64)]) -> Option<Duration> {
        self.control.what_if(amounts)
    }

    fn set(&self, limit: &str, amount: u64) -> Result<(), String> {
        self.gate.set(limit, amount).map_err(|error| error.to_string())
    }
}

/// A dashboard that is served until this is dropped.
pub(crate) struct Dashboard {
    stopper: Stopper,
    tasks: Vec<JoinHandle<()>>,
    _history: tidegate_web::Watch,
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.stopper.stop();
        self.tasks.iter().for_each(|task| {
            task.cancel();
        });
    }
}

impl DashboardArgs {
    /// What is asked for, checked before the run begins.
    pub(crate) fn options(&self) -> anyhow::Result<Option<Options>> {
        let Some(address) = self.dashboard else { return Ok(None) };
        let token = match &self.dashboard_token_file {
            Some(path) => Some(
                Token::from_file(path)
                    .map_err(|error| anyhow!("--dashboard-token-file {}: {error}", path.display()))?,
            ),
            None if address.ip().to_canonical().is_loopback() => None,
            None => Some(Token::generate()?),
        };
        let hosts = self.dashboard_host.clone();
        Ok(Some(Options { token, hosts, read_only: self.dashboard_read_only, ..Options::new(address) }))
    }
}

impl Dashboard {
    /// Serves the page about `process`, whose run has `control` and sends its requests through `gate` to `upstream`, and says where
    /// it is.
    pub(crate) async fn open(
        options: Option<Options>,
        process: &str,
        upstream: &str,
        gate: &Admission,
        control: &Control,
        reporter: &Reporter,
    ) -> anyhow::Result<Option<Dashboard>> {
        let Some(options) = options else { return Ok(None) };
        let steer: Rc<dyn Steer> = Rc::new(RunLimits { gate: gate.clone(), control: control.clone() });
        let admission = gate.clone();
        let limits = Limits::new(vec![Upstream { name: upstream.to_owned(), admission, steer: Some(steer) }]);
        let event_loop = EventLoop::new(process);
        let mut site = Site::new();
        limits.mount(&mut site);
        event_loop.mount(&mut site);
        let token_file = options.token.as_ref().and_then(Token::file).map(Path::to_owned);
        let server = site
            .bind(options)
            .await
            .map_err(|error| anyhow!("--dashboard: {error}; choose another address with --dashboard=ADDR"))?;
        reporter.say(&format!("dashboard: {}", server.link()));
        if let Some(path) = token_file {
            reporter.say(&format!("the dashboard asks for the token in {}", path.display()));
        }
        if !server.address().ip().to_canonical().is_loopback() {
            reporter.say(
                "warning: the dashboard can be reached from other machines, and its token crosses the network unencrypted",
            );
        }
        let stopper = server.stopper();
        let failing = reporter.clone();
        let serving = spawn(async move {
            if let Err(error) = server.run().await {
                failing.say(&format!("the dashboard is not served any more: {error}"));
            }
        });
        let sampling = spawn(async move {
            loop {
                event_loop.sample();
                sleep(Duration::from_secs(1)).await;
            }
        });
        Ok(Some(Dashboard { stopper, tasks: vec![serving, sampling], _history: limits.watch() }))
    }
}
