"""Checks of `./test --soak` that need a nightly Rust. What cannot run says what is missing."""

import re
import shutil
from pathlib import Path

from runner import ROOT, TARGET, Failure, Job, StepFailed, exit_words

# Crates with unsafe code.
UNSAFE = ("tidegate-sync", "tidegate-loop")

# What Miri runs: package, targets of cargo, names of tests. Miri's epoll lacks EPOLLPRI, which every selector of the loop
# registers, so tests that run a loop are left out; so are those that call the kernel in ways that Miri does not know.
MIRI = (
    ("tidegate-sync", ("--lib", *(word for name in ("event", "foreign_wakers", "mutex", "queue", "random", "semaphore", "threads")
                                  for word in ("--test", name))), ()),
    ("tidegate-loop", ("--lib",), ("name::", "ready::", "task::blocks::", "threads::queue::", "timers::", "trace::json::",
                                   "uring::slots::")),
)

FUZZ = ROOT / "fuzz"
FUZZ_SECONDS_PER_TARGET = 120
# Input that takes longer is a failure.
FUZZ_INPUT_SECONDS_MAX = 10
# Counts which branches an input takes, and what was compared: the flags that cargo-fuzz sets. Without AddressSanitizer, as
# fuzz/README.md says.
FUZZ_FLAGS = (
    "--cfg", "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
)


def nightly(job: Job, *components: str) -> str | None:
    """Returns an installed nightly toolchain that has these components. If there is none, says what to install."""
    install = " ".join(["rustup toolchain install nightly", *(f"--component {name}" for name in components)])
    if not shutil.which("rustup"):
        job.say(f"skipped: rustup is missing; install it, then: {install}")
        return None
    names = re.findall(r"^(nightly\S*)", job.output("rustup", "toolchain", "list"), re.M)
    for name in names:
        installed = job.output("rustup", "component", "list", "--toolchain", name, "--installed")
        if all(re.search(rf"^{component}\b", installed, re.M) for component in components):
            return name
    missing = f"no nightly has {' and '.join(components)}" if names and components else "no nightly is installed"
    job.say(f"skipped: {missing} ({install})")
    return None


def host(job: Job, toolchain: str) -> str:
    """The target that the toolchain builds for. Named, cargo leaves build scripts and macros without the flags."""
    about = job.output("rustc", "-vV", env={"RUSTUP_TOOLCHAIN": toolchain})
    return re.search(r"^host: (\S+)", about, re.M).group(1)


def sanitized(job: Job, sanitizer: str, toolchain: str, *options: str) -> None:
    """The tests of the crates with unsafe code, built with a sanitizer."""
    env = {
        "RUSTUP_TOOLCHAIN": toolchain,
        "CARGO_TARGET_DIR": str(TARGET / sanitizer),
        "RUSTFLAGS": f"-Zsanitizer={sanitizer}",
    }
    packages = [word for name in UNSAFE for word in ("-p", name)]
    job.run("nice", "-n", "19", "cargo", "test", "--locked", "--quiet", *options, "--target", host(job, toolchain), *packages,
            "--lib", "--tests", env=env)


def address_sanitizer(job: Job) -> None:
    if toolchain := nightly(job):
        sanitized(job, "address", toolchain)


def thread_sanitizer(job: Job) -> None:
    # The standard library must be instrumented too, or its locks are unknown to the sanitizer: so it is built from source.
    if toolchain := nightly(job, "rust-src"):
        sanitized(job, "thread", toolchain, "-Zbuild-std")


def miri(job: Job) -> None:
    """Undefined behaviour in the code with `unsafe`, where Miri can run it."""
    toolchain = nightly(job, "miri", "rust-src")
    if not toolchain:
        return
    env = {
        "RUSTUP_TOOLCHAIN": toolchain,
        "CARGO_TARGET_DIR": str(TARGET / "miri"),
        # Randomised tests draw fresh seeds and read the environment.
        "MIRIFLAGS": "-Zmiri-disable-isolation",
    }
    for package, targets, names in MIRI:
        argv = ("cargo", "miri", "test", "--locked", "--quiet", "-p", package, *targets, "--", *names)
        job.run("nice", "-n", "19", *argv, env=env)


def fuzz(job: Job) -> None:
    """Each fuzz target for a bounded time, with the inputs in fuzz/corpus and those that earlier runs have found."""
    toolchain = nightly(job)
    if not toolchain:
        return
    if not shutil.which("c++"):
        job.say("skipped: a C++ compiler is missing; install the package 'g++'")
        return
    target = host(job, toolchain)
    env = {"RUSTUP_TOOLCHAIN": toolchain, "CARGO_TARGET_DIR": str(TARGET / "fuzz"), "RUSTFLAGS": " ".join(FUZZ_FLAGS)}
    if job.status("cargo", "fetch", "--locked", "--target", target, cwd=FUZZ, env=env) != 0:
        job.say("skipped: the packages that fuzz/ needs are missing; with a network, run: cd fuzz && cargo fetch --locked")
        return
    job.run("nice", "-n", "19", "cargo", "build", "--locked", "--quiet", "--bins", "--target", target, cwd=FUZZ, env=env)
    names = sorted(source.stem for source in (FUZZ / "fuzz_targets").glob("*.rs"))
    failures = [failure for name in names if (failure := fuzz_target(job, name, TARGET / "fuzz" / target / "debug" / name))]
    if failures:
        raise StepFailed(f"{len(failures)} of {len(names)} fuzz targets failed", failures)
    job.say(f"{len(names)} targets, {FUZZ_SECONDS_PER_TARGET} s each")


def fuzz_target(job: Job, name: str, program: Path) -> Failure | None:
    """Runs one target. Inputs that reach new code are kept in the target directory, where the next run finds them."""
    kept, failed = TARGET / "fuzz-corpus" / name, TARGET / "fuzz-failures" / name
    for directory in (kept, failed):
        directory.mkdir(parents=True, exist_ok=True)
    before = set(failed.iterdir())
    code = job.status("nice", "-n", "19", program, kept, FUZZ / "corpus" / name, f"-max_total_time={FUZZ_SECONDS_PER_TARGET}",
                      f"-timeout={FUZZ_INPUT_SECONDS_MAX}", f"-artifact_prefix={failed}/", "-print_final_stats=1")
    if code == 0:
        return None
    inputs = [str(path) for path in sorted(set(failed.iterdir()) - before)]
    return Failure(f"{name} {exit_words(code)}", " ".join([str(program), *inputs]))
