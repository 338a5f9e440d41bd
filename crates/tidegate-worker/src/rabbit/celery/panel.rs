//! What a worker knows of itself, in Celery's form.

use std::rc::Rc;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tidegate_loop::{LoopHandle, spawn, timeout};

use super::Shared;
use super::control::Panel;
use super::events::seconds;
use crate::codec::celery;
use crate::master::{MasterHandle, Stop};
use crate::rabbit::core::LOG_PATIENCE;
use crate::task::{Envelope, TaskId};

/// Where remote control is heard.
pub(super) struct Desk<'a>(pub(super) &'a Rc<Shared>);

/// The machine's load, as heartbeats have it.
pub(super) fn load() -> [f64; 3] {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut figures = text.split(' ').map(|figure| figure.parse().unwrap_or(0.0));
    [(); 3].map(|()| figures.next().unwrap_or(0.0))
}

/// What the machine calls itself.
pub(super) fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// What the process has used: processor time in seconds, memory in KiB.
fn usage() -> Value {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let stat = read("stat");
    // The name before may have anything in it; what is behind has one meaning a place.
    let figures: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    let ticks = |at: usize| figures.get(at).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
    let status = read("status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
    json!({ "utime": ticks(11) / TICKS, "stime": ticks(12) / TICKS, "maxrss": peak })
}

/// A second's, in what Linux shows to programs.
const TICKS: f64 = 100.0;

impl Desk<'_> {
    fn worker<T>(&self, of: impl FnOnce(&MasterHandle) -> T) -> Option<T> {
        self.0.worker.borrow().as_ref().map(of)
    }

    /// Tasks in hand: those that run, or those that wait for it.
    fn in_hand(&self, running: bool) -> Vec<Value> {
        let listed = self.worker(|worker| worker.control.shared.hands.list()).unwrap_or_default();
        let listed: Vec<_> = listed.into_iter().filter(|(_, begun)| begun.is_some() == running).collect();
        let envelopes = self.0.broker.envelopes();
        listed
            .iter()
            .filter_map(|(id, begun)| {
                envelopes.get(id).map(|(envelope, retries)| self.info(envelope, *retries, *begun))
            })
            .collect()
    }

    fn info(&self, envelope: &Envelope, retries: u32, begun: Option<Instant>) -> Value {
        let decode = self.0.decode.borrow().clone();
        let task = decode.and_then(|decode| decode(envelope, retries).ok());
        let name = task.as_ref().map_or("", |task| task.name.as_str());
        let ran = begun.map(|begun| LoopHandle::current().time().saturating_duration_since(begun));
        let since = ran.map(|ran| seconds(self.0.broker.core.now()) - ran.as_secs_f64());
        json!({
            "id": envelope.id.as_str(),
            "name": celery::shown_name(envelope, name),
            "type": name,
            "args": task.as_ref().map_or_else(|| json!([]), |task| json!(task.args)),
            "kwargs": task.as_ref().map_or_else(|| json!({}), |task| json!(task.kwargs)),
            "hostname": self.0.options.hostname,
            "time_start": since,
            "acknowledged": false,
            "delivery_info": {
                "exchange": "", "routing_key": envelope.queue, "priority": envelope.priority, "redelivered": retries > 0,
            },
            "worker_pid": begun.map(|_| std::process::id()),
        })
    }
}

impl Panel for Desk<'_> {
    fn stats(&self) -> Value {
        let shared = self.0;
        let uri = &shared.broker.core.uri;
        let host = uri.hosts.first();
        let figures = self.worker(|worker| {
            let inner = &worker.control.shared;
            let slots = inner.mode.slots();
            let total: Map<String, Value> =
                inner.counters.totals().into_iter().map(|(name, count)| (name, json!(count))).collect();
            (total, inner.mode.name(), slots)
        });
        let (total, mode, slots) = figures.unwrap_or((Map::new(), "", 0));
        let prefetch = shared.prefetch.get().unwrap_or_else(|| crate::Settings::prefetch_for(slots));
        let user = match &uri.sasl {
            tidegate_amqp::Sasl::Plain { user, .. } => Some(user.as_str()),
            _ => None,
        };
        json!({
            "total": total,
            "pid": std::process::id(),
            "clock": self.clock().to_string(),
            "uptime": shared.broker.core.clock.instant().saturating_duration_since(shared.born).as_secs(),
            "pool": {
                "implementation": format!("tidegate:{mode}"), "max-concurrency": slots,
                "processes": [std::process::id()], "timeouts": [0, 0],
            },
            "broker": {
                "hostname": host.map(|host| host.name.as_str()), "port": host.map(|host| host.port), "userid": user,
                "virtual_host": uri.vhost, "transport": "amqp", "ssl": uri.tls, "heartbeat": uri.heartbeat.as_secs_f64(),
            },
            "prefetch_count": prefetch,
            "rusage": usage(),
        })
    }

    fn active(&self) -> Vec<Value> {
        self.in_hand(true)
    }

    fn reserved(&self) -> Vec<Value> {
        self.in_hand(false)
    }

    fn registered(&self) -> Vec<String> {
        let mut names = self.worker(|worker| worker.control.shared.mode.handlers()).flatten().unwrap_or_default();
        names.sort();
        names
    }

    fn queues(&self) -> Vec<String> {
        self.0.queues.borrow().clone()
    }

    fn revoked(&self) -> Vec<String> {
        self.0.broker.revoked_ids()
    }

    fn conf(&self) -> Value {
        let shared = self.0;
        json!({
            "broker_url": shared.broker.core.uri.to_string(),
            "result_backend": "rpc://",
            "task_default_queue": shared.queues.borrow().first(),
            "task_serializer": "json",
            "task_track_started": shared.options.track_started,
            "accept_content": ["json"],
            "worker_send_task_events": shared.task_events.get(),
            "control_exchange": shared.options.control_exchange,
            "event_exchange": shared.options.event_exchange,
        })
    }

    fn clock(&self) -> u64 {
        self.0.sender.borrow().clock()
    }

    fn revoke(&self, ids: &[TaskId], terminate: bool) -> usize {
        let mut told = 0;
        for id in ids {
            tracing::info!(task.id = %id, terminate, "revoked by remote control");
            // What this process has is told at once, whatever becomes of the log.
            self.0.broker.note_revoked(id);
            told += self
                .worker(|worker| {
                    let hands = &worker.control.shared.hands;
                    if terminate { hands.revoke(id) } else { hands.revoke_waiting(id) }
                })
                .unwrap_or(0);
        }
        let (shared, ids) = (Rc::clone(self.0), ids.to_vec());
        drop(spawn(async move {
            for id in &ids {
                let noted = timeout(LOG_PATIENCE, shared.broker.log_revoked(id, terminate)).await;
                if !matches!(noted, Ok(Ok(()))) {
                    tracing::warn!(task.id = %id, "the revoke is not in the log: workers that start later do not hear of it");
                }
            }
        }));
        told
    }

    fn events(&self, on: bool) -> bool {
        let before = self.0.task_events.replace(on);
        if before != on {
            tracing::info!(on, "task events switched by remote control");
        }
        before
    }

    fn heartbeat(&self) {
        self.0.heartbeat("worker-heartbeat");
    }

    fn recycle(&self) {
        self.worker(MasterHandle::recycle);
    }

    fn shutdown(&self) {
        tracing::warn!("told to stop by remote control");
        self.worker(|worker| worker.stop(Stop::Warm));
    }
}
