//! `--handler explain`: the pages of others, asked about with this worker's key and within its limits.

use std::rc::Rc;

use tidegate_batch::Quotas;
use tidegate_crew::{Allowed, Asks, PageHandler};

use crate::command::limits::{Opened, SharedArgs};
use crate::command::server::{AddressArgs, ProviderArg};
use crate::counts::Counts;

/// How often a request is tried again when the server fails, before its page is given back as failed.
const RETRIES: u32 = 5;

/// Whom to ask, and within which limits.
#[derive(Debug, Clone)]
pub(crate) struct PagesSpec {
    pub(crate) server: AddressArgs,
    pub(crate) quotas: Quotas,
    pub(crate) counts: Counts,
    pub(crate) shared: SharedArgs,
    pub(crate) allowed: Allowed,
}

/// The same, ready.
pub(crate) struct Pages {
    pub(crate) handler: Rc<PageHandler>,
    pub(crate) limits: Opened,
}

impl PagesSpec {
    pub(crate) async fn open(&self, worker: &str) -> anyhow::Result<Pages> {
        let limits = self.shared.open(&self.quotas, &self.counts).await?;
        let asks = match self.server.provider {
            ProviderArg::Local => Asks::Local(limits.admission.clone()),
            _ => Asks::Server(self.server.caller(&limits.admission, RETRIES)?),
        };
        Ok(Pages { handler: Rc::new(PageHandler::with_allowed(asks, worker, self.allowed.clone())), limits })
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{} = {}", tidegate_crew::TASK, self.server.provider.name());
        if let Ok(Some(url)) = self.server.base_url() {
            text.push_str(&format!(" at {url}"));
        }
        text
    }

    /// What it keeps to, in a line.
    pub(crate) fn limits(&self) -> String {
        let each: Vec<String> =
            self.quotas.limits().iter().map(|limit| format!("{} {}", limit.name(), limit.amount())).collect();
        let mut text = each.join(", ");
        if let Some(redis) = &self.shared.limits {
            text.push_str(&format!("; in common at {redis} as {}", self.shared.limits_name));
        }
        text
    }
}
