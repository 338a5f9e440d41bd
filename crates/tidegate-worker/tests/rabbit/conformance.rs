//! The suite every broker passes, on classic and on quorum queues, each case in a vhost of its own.

use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tidegate_worker::conformance::{Case, Subject};
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{Broker, Local};

use crate::support::{ctl, host, on_loop};

/// More than there are cases, for two kinds.
const VHOSTS: usize = 90;

/// Empty ones; made all at once, because every call of rabbitmqctl takes a second.
fn vhost() -> String {
    static MADE: OnceLock<String> = OnceLock::new();
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let prefix = MADE.get_or_init(|| {
        let prefix = format!("case-{}", std::process::id());
        let make = format!(
            "[begin V = list_to_binary(io_lib:format(\"{prefix}-~b\", [N])), rabbit_vhost:add(V, <<\"tests\">>), \
             rabbit_auth_backend_internal:set_permissions(<<\"guest\">>, V, <<\".*\">>, <<\".*\">>, <<\".*\">>, \
             <<\"tests\">>) end || N <- lists:seq(0, {VHOSTS})]."
        );
        ctl(&["eval", &make]);
        prefix
    });
    format!("{prefix}-{}", NEXT.fetch_add(1, Relaxed))
}

struct InVhost {
    vhost: String,
    kind: QueueKind,
}

impl Subject for InVhost {
    fn connect(&self) -> Local<'_, Rc<dyn Broker>> {
        Box::pin(async {
            let address = format!("amqp://{}/{}", host(), self.vhost);
            let mut options = Options::default();
            options.kind = self.kind;
            Rc::new(RabbitBroker::open(&address, options).await.unwrap()) as Rc<dyn Broker>
        })
    }

    fn lose_leases(&self) -> Local<'_, ()> {
        let vhost = self.vhost.clone();
        Box::pin(async move {
            let close = move || ctl(&["close_all_connections", "--vhost", &vhost, "the test says so"]);
            tidegate_loop::to_thread(close).await.unwrap();
        })
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
    }
}

fn run(kind: QueueKind, case: Case) {
    on_loop(async move { case(Rc::new(InVhost { vhost: vhost(), kind })).await });
}

mod classic {
    fn run(case: super::Case) {
        super::run(super::QueueKind::Classic, case);
    }

    tidegate_worker::broker_conformance!(run);
}

mod quorum {
    fn run(case: super::Case) {
        super::run(super::QueueKind::Quorum, case);
    }

    tidegate_worker::broker_conformance!(run);
}
