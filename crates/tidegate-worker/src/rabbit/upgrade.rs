//! Deletes what earlier versions have made and this one does not use.

use tidegate_amqp::{Connection, Error};

use super::core::Core;
use super::delay::{self, Rungs};
use super::link::of_request;
use crate::broker::BrokerError;

/// What an upgrade of a queue did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upgrade {
    /// Delay queues that were deleted.
    pub deleted: u32,
    /// Delay queues that stay, because tasks wait in them or have to pass them.
    pub left: u32,
}

impl Core {
    pub(super) async fn upgrade(&self, queue: &str) -> Result<Upgrade, BrokerError> {
        let mut all = Upgrade { deleted: 0, left: 0 };
        let control = self.control.connection().await?;
        let old = (0..delay::LEVELS).map(|level| delay::old_rung_name(queue, level)).collect();
        self.delete_rungs(&control, old, &mut all).await?;
        let classic = self.classic_rungs(&control, queue).await?;
        if !classic.is_empty() {
            self.delete_rungs(&control, classic, &mut all).await?;
            self.forget();
            // Better ones at once: tasks in rungs of the better kind may have to pass those that were deleted.
            self.ensure_ladder(queue).await?;
        }
        Ok(all)
    }

    /// The rungs, from the lowest, that were made on a broker without at-least-once dead-lettering, and could be better now.
    async fn classic_rungs(&self, control: &Connection, queue: &str) -> Result<Vec<String>, BrokerError> {
        let best = Rungs::of_version(control.server_property("version").as_deref());
        if best == Rungs::AtMostOnce || !self.has_ladder(queue).await? {
            return Ok(Vec::new());
        }
        let (rungs, _) = delay::ladder(queue, &self.kind(queue).target(queue), best);
        let mut classic = Vec::new();
        for rung in rungs {
            if self.look(&rung.name).await?.is_none() {
                continue;
            }
            let declared = control.declare(&rung).await;
            control.try_recv_all();
            match declared {
                Ok(_) => {}
                Err(Error::Refused { refusal, .. }) if refusal.difference().is_some() => classic.push(rung.name),
                Err(error) => return Err(of_request(&error)),
            }
        }
        Ok(classic)
    }

    /// Deletes rungs from the highest down, up to the first that is not empty: classic rungs lose a message whose next rung is
    /// missing. A producer that still uses them gets its message back, and makes them again.
    async fn delete_rungs(
        &self,
        control: &Connection,
        names: Vec<String>,
        all: &mut Upgrade,
    ) -> Result<(), BrokerError> {
        let mut there = Vec::new();
        for name in names {
            if self.look(&name).await?.is_some() {
                there.push(name);
            }
        }
        while let Some(name) = there.pop() {
            let deleted = control.delete_idle(&name).await;
            control.try_recv_all();
            match deleted {
                Ok(()) => all.deleted += 1,
                Err(Error::Refused { refusal, .. }) if refusal.code == 406 => {
                    all.left += 1 + there.len() as u32;
                    return Ok(());
                }
                Err(error) => return Err(of_request(&error)),
            }
        }
        Ok(())
    }
}
