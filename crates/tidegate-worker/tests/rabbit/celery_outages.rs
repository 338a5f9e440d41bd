//! A worker among Celery's when the broker goes away and comes back.

use std::rc::Rc;

use serde_json::json;
use tidegate_worker::Stop;
use tidegate_worker::rabbit::{PresenceOptions, QueueKind};

use crate::celery::Worker;
use crate::support::{name, node, on_loop, open_kind, python_text};

/// Asks until it is answered, hears a heartbeat, and has a task run.
const LOOK: &str = r#"
import json, sys
from celery import Celery
app = Celery(broker=sys.argv[1], backend="rpc://")
app.conf.task_default_queue = sys.argv[2]
node = sys.argv[3]
for _ in range(60):
    ping = app.control.inspect(destination=[node], timeout=1).ping()
    if ping:
        break
beats = []
class Enough(Exception):
    pass
def hear(event):
    if event["hostname"] == node:
        beats.append(event)
        if len(beats) == 2:
            raise Enough
with app.connection() as connection:
    try:
        app.events.Receiver(connection, handlers={"worker-heartbeat": hear}).capture(limit=None, timeout=60, wakeup=False)
    except Enough:
        pass
print(json.dumps({"ping": ping[node], "beats": len(beats), "sum": app.send_task("add", (1, 2)).get(timeout=60)}))
"#;

#[test]
fn celerys_tools_find_the_worker_again_when_the_broker_is_back() {
    on_loop(async {
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let queue = name("presence");
        let worker = Worker::start(&broker, &queue, 10, PresenceOptions::new(&name("tidegate")));
        let hostname = worker.presence.hostname().to_owned();
        for end in [None, Some("kill"), Some("stop")] {
            if let Some(verb) = end {
                node(verb).await;
                node("start").await;
            }
            let told = python_text(LOOK, &[&queue, &hostname]).await;
            assert_eq!(told, json!({"ping": {"ok": "pong"}, "beats": 2, "sum": 3}), "after {end:?}");
        }
        worker.handle.stop(Stop::Warm);
        worker.ended().await;
    });
}
