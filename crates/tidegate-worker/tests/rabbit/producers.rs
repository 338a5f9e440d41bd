//! A real worker of Celery's, from PyPI, in the environment that the step rabbitmq of `./test` makes.

use std::time::Duration;

use serde_json::json;
use tidegate_worker::codec::celery;
use tidegate_worker::rabbit::QueueKind;
use tidegate_worker::{Broker, Task};

use crate::support::{name, on_loop, open_kind, python};

#[test]
fn celerys_workers_run_our_tasks() {
    on_loop(async {
        let broker = open_kind(QueueKind::Plain).await;
        let queue = name("celery-worker");
        let mut task = Task::new("join").arg(1).kwarg("to", "a@example.org");
        task.hard_limit = Some(Duration::from_secs(30));
        let plain = celery::encode(&task, &queue, &celery::Extras::default());
        let mut late = Task::new("join").arg("late");
        late.id = "later".into();
        let eta = Some(broker.now() + Duration::from_secs(1));
        let late = celery::encode(&late, &queue, &celery::Extras { eta, ..celery::Extras::default() });
        broker.publish(vec![plain, late]).await.unwrap();
        let seen = python("celery_note.py", &[&queue, "2"]).await;
        let expected = json!([
            [task.id.as_str(), [1], {"to": "a@example.org"}, [30.0, null]],
            ["later", ["late"], {}, [null, null]],
        ]);
        assert_eq!(seen, expected);
        broker.close().await.unwrap();
    });
}
