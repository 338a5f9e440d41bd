//! `peer-apalis PATH COUNT PAUSE_MS`: microseconds a task, from the first push until the last is recorded as done, in one process.
//! Every connection syncs its commits, as a queue that must not lose tasks has to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use futures::stream;
use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};

/// In flight at most, and fetched at once.
const IN_FLIGHT: usize = 1_000;

/// Pushed by one call.
const BATCH: usize = 100;

static DONE: AtomicUsize = AtomicUsize::new(0);

async fn open(path: &str) -> Result<SqlitePool, BoxDynError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .busy_timeout(Duration::from_secs(30))
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    Ok(SqlitePoolOptions::new().max_connections(4).connect_with(options).await?)
}

async fn run(_body: String, pause: Data<Duration>) -> Result<(), BoxDynError> {
    if !pause.is_zero() {
        tokio::time::sleep(*pause).await;
    }
    DONE.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxDynError> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("a path")?;
    let count: usize = args.next().ok_or("a count")?.parse()?;
    let pause = Duration::from_millis(args.next().ok_or("milliseconds")?.parse()?);

    // Its own setup turns syncing off for the connection that runs it; the tasks go through others.
    let setup = open(&path).await?;
    SqliteStorage::setup(&setup).await?;
    setup.close().await;
    let pool = open(&path).await?;

    let config = Config::default().queue("bench").batch_size(IN_FLIGHT);
    let storage: SqliteStorage<String> = SqliteStorage::new(&pool).with_config(config);
    let mut producer = storage.clone();
    let worker = WorkerBuilder::new("bench")
        .backend(storage.poll_with_interval(Duration::from_millis(1)))
        .data(pause)
        .concurrency(IN_FLIGHT)
        .parallelize(tokio::spawn)
        .build(run);
    // The worker shares this task, not a spawned one: its future is not general enough for that.
    tokio::select! {
        ended = worker.run() => Err(format!("the worker ended: {ended:?}").into()),
        took = produce(&mut producer, &pool, count) => {
            println!("{}", took?);
            Ok(())
        }
    }
}

/// Microseconds a task, from the first push until all are recorded as done.
async fn produce(storage: &mut SqliteStorage<String>, pool: &SqlitePool, count: usize) -> Result<f64, BoxDynError> {
    let count = count / BATCH * BATCH;
    let began = Instant::now();
    for _ in 0..count / BATCH {
        let body = "a body of about a hundred bytes, as the others have it, in quotation marks";
        storage
            .push_stream(&mut stream::iter((0..BATCH).map(|_| body.to_owned())))
            .await
            .map_err(|error| error.to_string())?;
    }
    loop {
        if DONE.load(Ordering::Relaxed) >= count {
            let (done,): (i64,) =
                sqlx::query_as("SELECT count(*) FROM Jobs WHERE status = 'Done'").fetch_one(pool).await?;
            if done as usize >= count {
                return Ok(began.elapsed().as_secs_f64() * 1e6 / count as f64);
            }
        }
        if began.elapsed() > Duration::from_secs(120) {
            return Err(format!("after two minutes {} of {count} tasks have run", DONE.load(Ordering::Relaxed)).into());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
