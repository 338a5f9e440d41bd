//! A dashboard about a load of its own: requests that fill the windows of a gate, and now and then a step that blocks the
//! loop. For looking at the pages, and for the tests in a browser.
//!
//! `cargo run -p tidegate-web --example dashboard [ADDRESS]`

use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_limit::{Cost, Gate, Limit, Window};
use tidegate_loop::{LoopHandle, run, sleep, spawn};
use tidegate_web::{EventLoop, Limits, Options, Site, Steer, Upstream};

/// Changes the gate; the work that waits is the requests in line.
struct Direct(Gate);

impl Steer for Direct {
    fn time_left(&self, amounts: &[(&str, u64)]) -> Option<Duration> {
        // A gate of its own with other amounts foretells; this one is not touched.
        let stats = self.0.stats();
        let limits = stats.limits.iter().filter(|limit| limit.dimension.is_some()).map(|limit| {
            let wanted =
                amounts.iter().find(|(name, _)| *name == limit.name).map_or(limit.amount, |(_, amount)| *amount);
            match limit.name.as_str() {
                "rpm" => Limit::rpm(wanted),
                "tpm" => Limit::tpm(wanted),
                _ => Limit::rpd(wanted, "UTC"),
            }
        });
        let gate = limits.fold(Gate::builder(), |builder, limit| builder.limit(limit)).build().ok()?;
        gate.outlook(stats.waiting as u64, &Cost::tokens(2_800))
    }

    fn set(&self, limit: &str, amount: u64) -> Result<(), String> {
        self.0.set(limit, amount).map_err(|error| error.to_string())
    }
}

fn main() {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7433".to_owned());
    let served = run(async move {
        let gate = Gate::builder()
            .limit(Limit::concurrency("global", 200))
            .limit(Limit::rpm(150).window(Window::strict(Duration::from_secs(6))))
            .limit(Limit::tpm(400_000).window(Window::strict(Duration::from_secs(6))))
            .limit(Limit::rpd(10_000, "America/Los_Angeles"))
            .build()
            .expect("limits above zero");
        for (file, pages, cap) in
            [("pilotage-annual-report-2025.pdf", 900, 30), ("pilotage-financials-2025.pdf", 700, 30)]
        {
            let scope = Rc::new(gate.scope(file, cap));
            for page in 0..pages {
                let (gate, scope) = (gate.clone(), Rc::clone(&scope));
                LoopHandle::current().task().name(format!("page {page}")).spawn(async move {
                    loop {
                        let cost = Cost::tokens(2_000 + (page * 37) % 1_600);
                        let Ok(mut lease) = gate.enter(&scope, cost).await else { return };
                        lease.sent();
                        sleep(Duration::from_millis(200 + page % 7 * 90)).await;
                        lease.answered();
                    }
                });
            }
        }
        let refusing = gate.clone();
        spawn(async move {
            loop {
                sleep(Duration::from_secs(9)).await;
                let _ = refusing.pause("tpm", Duration::from_secs(2));
            }
        });
        LoopHandle::current().task().name("parse_manifest").spawn(async {
            loop {
                sleep(Duration::from_secs(4)).await;
                let until = Instant::now() + Duration::from_millis(40);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
        });
        let steer: Rc<dyn Steer> = Rc::new(Direct(gate.clone()));
        let limits =
            Limits::new(vec![Upstream { name: "gemini".into(), admission: (&gate).into(), steer: Some(steer) }]);
        let event_loop = EventLoop::new("the example dashboard");
        let mut site = Site::new();
        limits.mount(&mut site);
        event_loop.mount(&mut site);
        let _watch = limits.watch();
        let options = Options::new(address.parse().expect("an address such as 127.0.0.1:7433"));
        let server = site.bind(options).await.expect("the address is free");
        println!("{}", server.link());
        spawn(async move {
            loop {
                event_loop.sample();
                sleep(Duration::from_secs(1)).await;
            }
        });
        server.run().await
    });
    served.expect("the loop runs").expect("the server runs");
}
