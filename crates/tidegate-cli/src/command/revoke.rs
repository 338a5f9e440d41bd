//! `tidegate revoke`: a task that must not run, or not go on.

use tidegate_worker::TaskId;

use crate::broker::{BrokerArgs, failed, on_loop};
use crate::command::Done;

/// Revoke tasks: a waiting one is dropped, a running one is ended by its worker
///
/// A revoke is remembered for a day, so a task that is published later is dropped as well.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tasks' ids
    #[arg(required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    broker: BrokerArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Done> {
    let (place, ids) = (args.broker.clone(), args.ids.clone());
    on_loop(async move {
        let broker = place.open_shared().await?;
        for id in ids {
            broker.revoke(&TaskId::from(id.as_str())).await.map_err(failed)?;
        }
        broker.close().await.map_err(failed)?;
        Ok(Done::All)
    })
}
