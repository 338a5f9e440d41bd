//! HTTP with keep-alive: axum's `Router` on both runtimes, the load from `wrk`.

use std::process::{Command, Stdio};

use super::process::Server;
use super::servers::{self, Served};
use crate::cpus::Cpus;
use crate::harness::Sample;

pub(super) const CONNECTIONS: u32 = 50;

pub(super) fn sample(name: &'static str) -> Sample {
    let cpus = Cpus::claim();
    let server = cpus.for_server(|| Server::start(&mut servers::command(Served::Http, name)?))?;
    wrk(server.port, "1s").map(drop)?;
    let before = server.cpu()?;
    let requests = wrk(server.port, "1s")?;
    let spent = server.cpu()? - before;
    Ok(spent.as_secs_f64() * 1e6 / requests)
}

/// How many requests were answered.
fn wrk(port: u16, duration: &str) -> Result<f64, String> {
    let mut command = Command::new("wrk");
    command.args(["--threads", "1", "--connections", &CONNECTIONS.to_string(), "--duration", duration]);
    let done = command.arg(format!("http://127.0.0.1:{port}/")).stdin(Stdio::null()).output();
    let done = done.map_err(|error| format!("wrk, which Debian's package of that name has: {error}"))?;
    answered(&String::from_utf8_lossy(&done.stdout))
}

/// From wrk's report, `  123456 requests in 1.00s, 15.31MB read`. Anything that went wrong spoils the figure.
fn answered(report: &str) -> Result<f64, String> {
    if let Some(wrong) = report.lines().find(|line| line.contains("Socket errors") || line.contains("Non-2xx")) {
        return Err(format!("wrk: {}", wrong.trim()));
    }
    let count = report.lines().find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok());
    count.filter(|count| *count > 0.0).ok_or_else(|| "wrk did not say how many requests were answered".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "Running 1s test\n  1 threads and 50 connections\n  24680 requests in 1.00s, 3.06MB read\n";

    #[test]
    fn wrks_report_is_understood() {
        assert_eq!(answered(REPORT), Ok(24680.0));
    }

    #[test]
    fn a_run_with_errors_gives_no_figure() {
        let errors = format!("{REPORT}  Socket errors: connect 0, read 3, write 0, timeout 0\n");
        assert!(answered(&errors).unwrap_err().contains("read 3"));
        assert!(answered("unable to connect").is_err());
    }
}
