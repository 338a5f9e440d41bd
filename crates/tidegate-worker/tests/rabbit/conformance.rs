//! The suite every broker passes, each case in a vhost of its own. Left out is what AMQP cannot do, as `rabbit/mod.rs` says: the
//! same id stored once, a revoked task taken out before its turn, delayed tasks seen by peeking, the age of the oldest task, and
//! the order among tasks that are returned one after the other (`settling.rs` has what holds instead).

use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tidegate_worker::conformance::{Case, Subject};
use tidegate_worker::rabbit::{Options, RabbitBroker};
use tidegate_worker::{Broker, Local};

use crate::support::{ctl, host, on_loop};

/// More than there are cases.
const VHOSTS: usize = 40;

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

struct InVhost(String);

impl Subject for InVhost {
    fn connect(&self) -> Local<'_, Rc<dyn Broker>> {
        Box::pin(async {
            let address = format!("amqp://{}/{}", host(), self.0);
            Rc::new(RabbitBroker::open(&address, Options::default()).await.unwrap()) as Rc<dyn Broker>
        })
    }

    fn lose_leases(&self) -> Local<'_, ()> {
        let vhost = self.0.clone();
        Box::pin(async move {
            let close = move || ctl(&["close_all_connections", "--vhost", &vhost, "the test says so"]);
            tidegate_loop::to_thread(close).await.unwrap();
        })
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
    }
}

fn run(case: Case) {
    on_loop(async move { case(Rc::new(InVhost(vhost()))).await });
}

tidegate_worker::broker_conformance!(@ run:
    what_is_published_arrives_as_it_was
    a_batch_with_one_bad_task_is_refused_whole
    no_more_than_the_prefetch_is_out_at_a_time
    higher_priorities_come_first_and_equal_ones_in_order
    several_queues_are_served_side_by_side
    two_consumers_never_get_the_same_task
    cancelling_a_receive_loses_nothing
    a_receiver_that_waits_is_woken_by_a_publish
    settled_tasks_are_gone_for_good
    a_tag_settles_once_and_only_its_own_consumers
    a_retry_comes_at_its_time_and_is_counted
    stopping_gives_back_what_was_not_seen_and_settling_goes_on
    closing_returns_what_was_not_settled_uncounted
    a_closed_broker_says_so
    delayed_tasks_come_at_their_time_and_take_no_prefetch
    expired_tasks_are_dropped_told_and_known_as_expired
    dead_letters_are_kept_listed_retried_and_dropped
    a_unique_key_is_held_while_its_task_lives
    a_unique_key_is_free_again_after_its_time
    a_unique_key_may_outlast_its_task
    purging_drops_what_waits_and_nothing_else
    large_bodies_pass_and_larger_ones_are_refused_by_name
    names_and_priorities_that_cannot_be_are_refused
    revoking_a_running_task_tells_its_worker_and_ends_it
    revoking_a_task_to_come_drops_it_on_arrival
    results_are_kept_with_the_settlement
    waiting_for_a_result_ends_with_the_last_one
    results_are_forgotten_after_their_time
    lost_deliveries_are_told_and_go_to_somebody_else
    tags_of_before_a_loss_settle_nothing
    a_consumer_that_vanishes_gives_its_tasks_back_counted
);
