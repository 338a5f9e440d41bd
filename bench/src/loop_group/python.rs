//! CPython's asyncio and uvloop, each round in a process of its own that times itself.

use std::path::Path;
use std::process::Command;

use crate::harness::Sample;
use crate::python::{Python, output};

/// Prints ns a switch: one coroutine that gives control away `argv[2]` times.
const SCRIPT: &str = r#"
import asyncio, sys, time

async def main(count):
    begun = time.perf_counter_ns()
    for _ in range(count):
        await asyncio.sleep(0)
    return (time.perf_counter_ns() - begun) / count

loop = None
if sys.argv[1] == "uvloop":
    import uvloop
    loop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()
print(loop.run_until_complete(main(int(sys.argv[2]))))
loop.close()
"#;

/// A contestant: ns a `sleep(0)` under asyncio's own loop.
pub(crate) fn asyncio(python: &Python, count: u32) -> impl FnMut() -> Sample + 'static {
    let interpreter = python.interpreter();
    move || switch(interpreter.as_ref()?, "asyncio", count)
}

/// The same under uvloop, which the first call installs.
pub(crate) fn uvloop(python: &Python, count: u32) -> impl FnMut() -> Sample + 'static {
    let python = python.clone();
    let mut interpreter = None;
    move || switch(interpreter.get_or_insert_with(|| python.with_uvloop()).as_ref()?, "uvloop", count)
}

fn switch(python: &Path, kind: &str, count: u32) -> Sample {
    let printed = output(Command::new(python).args(["-c", SCRIPT, kind, &count.to_string()]))?;
    printed.parse().map_err(|_| format!("{kind} printed {printed:?} instead of a figure"))
}
