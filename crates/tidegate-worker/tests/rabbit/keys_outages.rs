//! Connections are cut while tasks with unique keys are published.

use tidegate_loop::{spawn, timeout};
use tidegate_worker::rabbit::Options;
use tidegate_worker::{Broker, Published};

use crate::keys::{PATIENCE, keyed};
use crate::support::{ctl, envelope, name, on_loop, open_with};

#[test]
fn a_killed_connection_stores_a_unique_task_all_the_same() {
    on_loop(async {
        let mut options = Options::default();
        options.publish_patience = PATIENCE;
        let broker = open_with(options).await;
        let queue = name("cut-key");
        broker.publish(vec![envelope(&queue, "first")]).await.unwrap();
        let tasks: Vec<_> =
            (0..200).map(|number| keyed(&queue, &number.to_string(), &format!("{queue}-{number}"))).collect();
        let publishing = spawn({
            let tasks = tasks.clone();
            async move {
                let published = broker.publish(tasks).await.unwrap();
                (broker, published)
            }
        });
        // While keys are taken.
        tidegate_loop::to_thread(|| ctl(&["close_all_connections", "the test says so"])).await.unwrap();
        let (broker, published) = timeout(PATIENCE, publishing).await.unwrap().unwrap();
        assert!(published.iter().all(|published| *published == Published::Stored), "{published:?}");
        let again = broker.publish(tasks.clone()).await.unwrap();
        let duplicates: Vec<_> = tasks.iter().map(|task| Published::Duplicate(task.id.clone())).collect();
        assert_eq!(again, duplicates);
        broker.close().await.unwrap();
    });
}
