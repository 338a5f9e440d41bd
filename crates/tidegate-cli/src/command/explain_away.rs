//! `tidegate explain --broker`: workers ask, this process collects.

use std::rc::Rc;
use std::time::Duration;

use tidegate_batch::{Control, Parameters, Provider};
use tidegate_crew::{Crew, Server};
use tidegate_loop::{JoinHandle, sleep, spawn};
use tidegate_redis::SharedGate;
use tidegate_worker::Broker;

use super::limits::Opened;
use super::pages;
use super::server::AddressArgs;
use crate::progress::Reporter;

/// After this long without a single result, the queue is checked for workers.
const QUIET: Duration = Duration::from_secs(5);

/// How often the shared limits are read for the display, because this process sends no requests under them.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A run whose requests are sent by workers.
pub(super) struct Away {
    pub(super) broker: Rc<dyn Broker>,
    pub(super) crew: Crew,
    shared: Option<SharedGate>,
    /// The command that starts a worker, shown if there is none.
    hint: String,
}

/// The provider, its parameters and the options of a run.
pub(super) struct Asks<'a> {
    pub(super) address: &'a AddressArgs,
    pub(super) parameters: Option<Parameters>,
    /// Who would be asked without workers.
    pub(super) alone: Rc<dyn Provider>,
    pub(super) base_url: String,
    pub(super) fresh: bool,
}

impl Away {
    /// Workers that take from `queue` of `broker`.
    pub(super) fn new(broker: Rc<dyn Broker>, queue: &str, asks: Asks<'_>, limits: &Opened) -> Away {
        let Asks { address, parameters, alone, base_url, fresh } = asks;
        let name = address.provider.name().to_owned();
        let mut hint = format!("tidegate worker --broker {} --queue {queue} --handler explain", broker.describe());
        hint.push_str(&format!(" --provider {name}"));
        if address.base_url.is_some() {
            hint.push_str(&format!(" --base-url {base_url}"));
        }
        let server = Server { provider: name, base_url };
        let gate = &limits.admission;
        let crew = Crew::new(Rc::clone(&broker), queue, server, alone, parameters, gate).with_fresh(fresh);
        Away { broker, crew, shared: limits.shared.clone(), hint }
    }

    /// Spawns the tasks that run beside it: revoking on a stop, the warning about missing workers, the shared limits.
    pub(super) fn attend(&self, control: Control, reporter: &Reporter) -> Vec<JoinHandle<()>> {
        let mut tasks = vec![
            spawn(take_back(self.crew.clone(), control, reporter.clone())),
            spawn(miss_workers(self.crew.clone(), self.hint.clone(), reporter.clone())),
        ];
        // Nothing enters the gate here, so the state of the shared limits is read on purpose.
        if let Some(shared) = self.shared.clone().filter(|_| !reporter.is_silent()) {
            tasks.push(spawn(async move {
                loop {
                    shared.look();
                    sleep(LOOK_EVERY).await;
                }
            }));
        }
        tasks
    }
}

/// Revokes the tasks that no worker has received when the run is stopped, so that they are not paid for.
async fn take_back(crew: Crew, control: Control, reporter: Reporter) {
    control.stop_asked().await;
    match crew.withdraw().await {
        Ok(withdrawn) => reporter.say(&format!(
            "{} were taken back from the queue; {} with the workers",
            pages(withdrawn.revoked),
            match withdrawn.left {
                0 => "none is".to_owned(),
                1 => "one is".to_owned(),
                left => format!("{left} are"),
            }
        )),
        Err(error) => reporter.say(&format!(
            "what waits in the queue could not be taken back ({error}); workers will answer it, and the same command again \
             collects that"
        )),
    }
}

/// Warns once if there is no worker.
async fn miss_workers(crew: Crew, hint: String, reporter: Reporter) {
    let mut said = false;
    loop {
        let before = crew.results();
        sleep(QUIET).await;
        if crew.results() > before || crew.outstanding() == 0 {
            said = false;
        } else if !said && crew.workers().await.is_ok_and(|workers| workers == 0) {
            said = true;
            reporter.say(&format!("no worker takes from the queue; start some: {hint}"));
        }
    }
}
