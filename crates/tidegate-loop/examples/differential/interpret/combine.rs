//! Waiting for tasks, one and several.

use std::future::Future;
use std::rc::Rc;

use tidegate_loop::{Task, When, as_completed, gather, gather_all, shield, wait, wait_for};

use super::coroutine::{Frame, equals};
use super::exc::{Exc, show};
use super::world::{Claim, Ended, Record, span};
use crate::program::{Mode, Place, Ticks};

impl Frame {
    fn reachable(&self, place: Place, unclaimed: bool) -> Option<Rc<Record>> {
        self.world.reachable(place, self.record.number, unclaimed)
    }

    fn claim(&self, place: Place) -> Option<(Rc<Record>, Claim)> {
        let record = self.reachable(place, true)?;
        let claim = record.claim()?;
        Some((record, claim))
    }

    /// Different tasks, with the claims on them.
    fn claims(&self, places: &[Place]) -> (Vec<Rc<Record>>, Vec<Claim>) {
        places.iter().filter_map(|&place| self.claim(place)).unzip()
    }

    /// Awaits what depends on those tasks, which meanwhile are known to be waited for.
    async fn waiting<T>(
        &self,
        records: &[Rc<Record>],
        awaited: impl Future<Output = Result<T, Exc>>,
    ) -> Result<T, Exc> {
        let number = self.record.number;
        let awaited_numbers: Vec<usize> = records.iter().map(|record| record.number).collect();
        self.world.begin_wait(number, &awaited_numbers);
        let outcome = self.caught(awaited).await;
        self.world.end_wait(number, &awaited_numbers);
        outcome
    }

    pub(crate) async fn await_self(&self) -> Result<(), Exc> {
        let Some(mut claim) = self.record.claim() else {
            self.write("await self none");
            return Ok(());
        };
        let outcome = self.caught(async { (&mut claim).await? }).await;
        let outcome = self.done("await self", outcome, equals);
        self.record.give_back(claim);
        outcome.map(drop)
    }

    pub(crate) async fn await_task(&self, place: Place) -> Result<(), Exc> {
        let Some(record) = self.reachable(place, false) else {
            self.write("await none");
            return Ok(());
        };
        let finished = async {
            record.task().finished().await;
            record.outcome()
        };
        let outcome = self.waiting(std::slice::from_ref(&record), finished).await;
        self.done(format_args!("await {}", record.who), outcome, equals).map(drop)
    }

    pub(crate) async fn join(&self, place: Place) -> Result<(), Exc> {
        let Some((record, mut claim)) = self.claim(place) else { return self.await_task(place).await };
        let outcome = self.waiting(std::slice::from_ref(&record), async { (&mut claim).await? }).await;
        self.after_claim("join", &record, claim, outcome)
    }

    pub(crate) async fn shield(&self, place: Place) -> Result<(), Exc> {
        let Some((record, mut claim)) = self.claim(place) else {
            self.write("shield none");
            return Ok(());
        };
        let outcome = self.waiting(std::slice::from_ref(&record), async { shield(&mut claim).await? }).await;
        self.after_claim("shield", &record, claim, outcome)
    }

    /// Gives the claim back while it is good for something.
    fn after_claim(&self, what: &str, record: &Record, claim: Claim, outcome: Ended) -> Result<(), Exc> {
        let outcome = self.done(format_args!("{what} {}", record.who), outcome, equals);
        if !record.task().is_finished() {
            record.give_back(claim);
        }
        outcome.map(drop)
    }

    pub(crate) async fn wait_for(&self, place: Place, limit: Ticks) -> Result<(), Exc> {
        let Some((record, claim)) = self.claim(place) else {
            self.write("wait_for none");
            return Ok(());
        };
        let waited = async { wait_for(span(limit), claim).await.map_err(|_| Exc::Timeout)?? };
        let outcome = self.waiting(std::slice::from_ref(&record), waited).await;
        self.done(format_args!("wait_for {} {limit}", record.who), outcome, equals).map(drop)
    }

    pub(crate) async fn wait(&self, places: &[Place], mode: Mode, limit: Option<Ticks>) -> Result<(), Exc> {
        let mut records: Vec<Rc<Record>> = Vec::new();
        for &place in places {
            if let Some(record) = self.reachable(place, false)
                && records.iter().all(|known| known.number != record.number)
            {
                records.push(record);
            }
        }
        if records.is_empty() && !places.is_empty() {
            self.write("wait none");
            return Ok(());
        }
        let when = match mode {
            Mode::FirstCompleted => When::FirstCompleted,
            Mode::FirstException => When::FirstException,
            Mode::All => When::All,
        };
        let tasks: Vec<Task> = records.iter().map(|record| record.task().clone()).collect();
        let waited = async { wait(&tasks, when, limit.map(span)).await.map_err(|_| Exc::EmptyWait) };
        let outcome = self.waiting(&records, waited).await;
        let names = |numbers: &[usize]| numbers.iter().map(|&at| records[at].who.clone()).collect::<Vec<_>>().join(" ");
        let show =
            |waited: &tidegate_loop::Waited| format!("done {} pending {}", names(&waited.done), names(&waited.pending));
        self.done(format_args!("wait {mode:?}"), outcome, show).map(drop)
    }

    pub(crate) async fn gather(&self, places: &[Place], keep_errors: bool) -> Result<(), Exc> {
        let (records, claims) = self.claims(places);
        let gathered = async {
            if keep_errors {
                let results = gather_all(claims).await;
                return Ok(results
                    .into_iter()
                    .map(|result| result.unwrap_or_else(|error| Err(error.into())))
                    .collect());
            }
            match gather(claims).await {
                Ok(results) => Ok(results),
                // The first error is the gather's own, whichever way the task came by it.
                Err(error) => match error.result {
                    Ok(Ok(value)) => panic!("{value} is no error"),
                    Ok(Err(exc)) => Err(exc),
                    Err(error) => Err(error.into()),
                },
            }
        };
        let outcome = self.waiting(&records, gathered).await;
        let show = |results: &Vec<Ended>| results.iter().map(show).collect::<Vec<_>>().join(" ");
        self.done(format_args!("gather {}", records.len()), outcome, show).map(drop)
    }

    pub(crate) async fn as_completed(&self, places: &[Place], take: usize) -> Result<(), Exc> {
        let (records, claims) = self.claims(places);
        let outcome = self.take_completed(&records, claims, take).await;
        self.done(format_args!("as_completed {}", records.len()), outcome, |()| "ok".into())
    }

    async fn take_completed(&self, records: &[Rc<Record>], claims: Vec<Claim>, take: usize) -> Result<(), Exc> {
        let mut results = as_completed(claims);
        for _ in 0..take.min(records.len()) {
            let next = async { results.next().await.expect("as many results as tasks").1? };
            let outcome = self.waiting(records, next).await;
            self.done("next", outcome, equals)?;
        }
        Ok(())
    }
}
