"""Checks of `./test --soak` that need a nightly Rust. What cannot run says what is missing."""

import re
import shutil

from runner import TARGET, Job

# Crates with unsafe code.
UNSAFE = ("tidegate-sync", "tidegate-loop")


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
