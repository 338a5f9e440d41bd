//! pika's blocking connection, on CPython.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Acks, MESSAGES, PREFETCH, QUEUE};
use crate::harness::Sample;
use crate::python::{Python, output};

/// `argv`: host:port, queue, messages, prefetch, how many to acknowledge at a time. Prints the seconds.
const SCRIPT: &str = r#"
import sys, time
import pika

address, queue, messages, prefetch, at_once = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
host, port = address.rsplit(":", 1)
connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
channel = connection.channel()
channel.basic_qos(prefetch_count=prefetch)
seen = 0

def deliver(channel, method, properties, body):
    global seen
    seen += 1
    if at_once == 1:
        channel.basic_ack(method.delivery_tag)
    elif seen % at_once == 0 or seen == messages:
        channel.basic_ack(method.delivery_tag, multiple=True)
    if seen == messages:
        channel.stop_consuming()

begun = time.perf_counter()
channel.basic_consume(queue, deliver)
channel.start_consuming()
channel.basic_qos(prefetch_count=prefetch)
print(time.perf_counter() - begun)
connection.close()
"#;

/// The release that is measured against.
const PINNED: &str = "pika==1.4.4";

/// An interpreter that has pika; installs it beside the build's output if need be.
fn interpreter() -> Result<PathBuf, String> {
    let executable = env::current_exe().map_err(|error| error.to_string())?;
    let target = executable.ancestors().nth(2).ok_or("the build's directory is not known")?;
    let environment = target.join("bench-python-pika");
    let python = environment.join("bin/python");
    if output(Command::new(&python).args(["-c", "import pika"])).is_ok() {
        return Ok(python);
    }
    eprintln!("installing {PINNED} into {}", environment.display());
    output(Command::new(Python::find().interpreter()?).args(["-m", "venv"]).arg(&environment))?;
    output(Command::new(&python).args(["-m", "pip", "install", "--quiet", PINNED]))?;
    Ok(python)
}

/// Seconds on the wall.
pub(super) fn consume(host: &str, acks: Acks) -> Sample {
    let at_once = match acks {
        Acks::Each => 1,
        Acks::Multiple(count) => count,
    };
    let numbers = [MESSAGES, PREFETCH.into(), at_once].map(|number| number.to_string());
    let done = Command::new(interpreter()?)
        .args(["-c", SCRIPT, host, QUEUE])
        .args(numbers)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    printed.trim().parse().map_err(|_| errors.lines().last().unwrap_or("python printed nothing").to_owned())
}
