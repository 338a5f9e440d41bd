//! Two tasks and a ball, over the runtime's own primitives. Mounted beside the workloads.

use std::time::Instant;

use super::primitives::oneshot::{self, Ball};
use super::vocabulary::{join, run, spawn};
use crate::loop_group::parts::ns_per;

/// ns a round trip over one-shot values (two of them, made and used up).
pub(crate) fn oneshots(trips: u32) -> f64 {
    run(async move {
        let (serve, first) = oneshot::channel();
        let echo = spawn(async move {
            let mut received = first;
            for _ in 0..trips {
                let Ball(reply) = oneshot::recv(received).await;
                let (sender, next) = oneshot::channel();
                oneshot::send(reply, Ball(sender));
                received = next;
            }
        });
        let mut partner = serve;
        let begun = Instant::now();
        for _ in 0..trips {
            let (sender, back) = oneshot::channel();
            oneshot::send(partner, Ball(sender));
            let Ball(next) = oneshot::recv(back).await;
            partner = next;
        }
        let cost = ns_per(begun.elapsed(), trips);
        join(echo).await;
        cost
    })
}
