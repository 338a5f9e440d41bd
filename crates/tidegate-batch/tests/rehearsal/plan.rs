use std::time::{Duration, SystemTime};

use tidegate_batch::plan::{Job, PER_FILE, Part, PlanError, Prices, Requests, SLICES_MAX, Tokens};
use tidegate_limit::{Limit, Window};

const PAGE: Tokens = Tokens { input: 900, output: 100 };

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn alike(count: u64) -> Requests {
    Requests::Alike { count, tokens: PAGE }
}

#[test]
fn without_limits_the_latency_and_the_cap_decide() {
    let plan = Job::new([]).part("a", alike(100), 10).latency(|_| secs(3)).run().unwrap();
    assert_eq!((plan.duration, plan.answered, plan.in_flight_peak), (secs(30), 100, 10));
    assert_eq!(plan.bound[0].limit, PER_FILE);
    assert!(plan.bound[0].share > 0.85, "{:?}", plan.bound);
}

#[test]
fn pictures_take_their_own_time_and_count_towards_the_cap() {
    let took = |pictures: u64, cap: u64| {
        let part = Part { name: "a".into(), requests: alike(40), cap, pictures: Some((alike(20), pictures)) };
        let plan = Job::new([]).parts([part]).latency(|_| secs(1)).run().unwrap();
        assert_eq!((plan.answered, plan.in_flight_peak <= cap), (60, true));
        plan.duration
    };
    // The first of them stand in line behind a second of text.
    assert_eq!(took(2, 10), secs(11), "text is answered meanwhile");
    assert_eq!(took(1, 10), secs(21));
    assert_eq!(took(20, 10), secs(6), "the cap decides");
}

#[test]
fn requests_a_minute_come_in_bursts_at_exact_minutes() {
    let plan = Job::new([Limit::rpm(10)]).part("a", alike(31), 50).latency(|_| secs(1)).run().unwrap();
    assert_eq!(plan.duration, secs(3 * 60 + 1));
    assert_eq!(plan.bound.len(), 1);
    assert_eq!((&*plan.bound[0].limit, plan.bound[0].waited), ("rpm", secs(180)));
}

#[test]
fn tokens_bind_where_requests_do_not() {
    let limits = [Limit::rpm(1_000), Limit::tpm(10_000)];
    let plan = Job::new(limits).part("a", alike(50), 50).latency(|_| secs(1)).run().unwrap();
    assert_eq!(plan.duration, secs(4 * 60 + 1));
    assert_eq!(plan.bound[0].limit, "tpm");
    assert_eq!((plan.tokens_in, plan.tokens_out), (45_000, 5_000));
}

#[test]
fn a_day_is_waited_for_until_midnight_in_its_zone() {
    let noon: jiff::Timestamp = "2026-07-01T12:00:00-07:00".parse().unwrap();
    let plan = Job::new([Limit::rpd(100, "America/Los_Angeles")])
        .part("a", alike(150), 50)
        .starts(SystemTime::from(noon))
        .latency(|_| secs(1))
        .run()
        .unwrap();
    assert_eq!(plan.duration, secs(12 * 3_600 + 1));
    assert_eq!(plan.bound[0].limit, "rpd");
}

#[test]
fn files_wait_for_their_turn_and_the_process_for_its_cap() {
    let job = |at_once| {
        let job = Job::new([Limit::concurrency("global", 15)]).latency(|_| secs(1)).parts_at_once(at_once);
        ["a", "b", "c"].iter().fold(job, |job, name| job.part(*name, alike(30), 10)).run().unwrap()
    };
    let one = job(1);
    assert_eq!((one.duration, one.in_flight_peak), (secs(9), 10));
    let all = job(3);
    assert_eq!((all.duration, all.in_flight_peak), (secs(6), 15));
    assert_eq!(all.bound[0].limit, "global");
}

#[test]
fn what_never_fits_is_told_apart_and_the_rest_goes_on() {
    let large = Tokens { input: 5_000, output: 0 };
    let plan = Job::new([Limit::tpm(2_000)])
        .part("a", Requests::Each(vec![PAGE, large, PAGE]), 5)
        .latency(|_| secs(1))
        .run()
        .unwrap();
    assert_eq!((plan.answered, plan.too_large), (2, 1));
    assert_eq!(plan.too_large_for, Some(("tpm".to_owned(), 2_000)));
}

#[test]
fn prices_are_by_the_million() {
    let prices = Prices { input: 2.0, output: 8.0 };
    let plan = Job::new([]).part("a", alike(1_000), 100).prices(prices).run().unwrap();
    assert!((plan.cost.unwrap() - (0.9 * 2.0 + 0.1 * 8.0)).abs() < 1e-9);
}

#[test]
fn the_timeline_stays_short_covers_everything_and_names_what_binds() {
    let plan = Job::new([Limit::rpm(60)]).part("a", alike(6_000), 50).latency(|_| secs(2)).run().unwrap();
    let slices = &plan.timeline;
    assert!(slices.len() <= SLICES_MAX && slices.len() > SLICES_MAX / 4, "{}", slices.len());
    assert_eq!(slices[0].from, Duration::ZERO);
    assert!(slices.windows(2).all(|pair| pair[0].to == pair[1].from));
    assert_eq!(slices.last().unwrap().to, plan.duration);
    assert_eq!(slices.iter().map(|slice| slice.sent).sum::<u64>(), 6_000);
    assert_eq!(slices.iter().map(|slice| slice.answered).sum::<u64>(), 6_000);
    let bound = slices.iter().filter(|slice| slice.bound_by.as_deref() == Some("rpm")).count();
    assert!(bound * 10 >= slices.len() * 9, "{bound} of {}", slices.len());
}

#[test]
fn nothing_to_do_takes_no_time_and_nonsense_is_refused() {
    let plan = Job::new([Limit::rpm(1)]).run().unwrap();
    assert_eq!((plan.duration, plan.answered, plan.bound.len()), (Duration::ZERO, 0, 0));
    let limit = Limit::rpm(0).window(Window::minute());
    assert!(matches!(Job::new([limit]).run(), Err(PlanError::Limits(_))));
    assert!(matches!(Job::new([]).part("a", alike(1), 0).run(), Err(PlanError::Cap(name)) if name == "a"));
}
