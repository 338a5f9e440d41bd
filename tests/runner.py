"""Runs the steps of `./test`, side by side where they can be, and reports what failed and how to repeat it.

steps.py defines the steps. A step starts as soon as the steps it needs have passed and the machine has room for its load.
However the run ends, no process that it started is left behind: every child carries `MARK` in its environment, also those that
leave its process group.
"""

import fcntl
import glob
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
MARK = "TIDEGATE_TEST_RUN"
SCRATCH_PREFIX = "tidegate-test-"
# What a failed step shows of its log; the whole log is named beside it.
LOG_LINES_SHOWN = 60


@dataclass
class Failure:
    """What failed, and the command that repeats only that."""

    what: str
    repeat: str


class StepFailed(Exception):
    """A step that failed: a sentence, and the tests that failed where they are known."""

    def __init__(self, message: str, failures: list[Failure] | None = None):
        super().__init__(message)
        self.failures = failures or []


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; `code` is the exit code that says which."""

    def __init__(self, number: int):
        self.code = 128 + number


@dataclass
class Step:
    """One row of the closing table.

    `load` is the number of cores that the step keeps busy on average: the runner starts steps side by side while the sum of
    their loads fits the machine. Steps of one `lane` take turns.
    """

    name: str
    action: Callable[["Job"], None]
    after: tuple[str, ...] = ()
    load: float = 1.0
    lane: str | None = None


@dataclass
class Job:
    """A running step: where it writes, what it has counted, and how it starts processes."""

    step: Step
    scratch: Path
    log_path: Path
    # Names of tests, given behind `--`; test programs run only these.
    only_tests: list[str]
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    error: Exception | None = None

    def run(self, *argv: object, shown: bool = False, log: Path | None = None, **options) -> None:
        """Runs a command to its end; its output goes to the step's log, or to the terminal if it is `shown`."""
        code = self.status(*argv, shown=shown, log=log, **options)
        if code != 0:
            raise StepFailed(f"{command_line(argv)} {exit_words(code)}")

    def status(self, *argv: object, shown: bool = False, log: Path | None = None, **options) -> int:
        """Like `run`, but returns the exit code."""
        if shown:
            with self.start(*argv, stdout=None, stderr=None, **options) as process:
                return process.wait()
        with open(log or self.log_path, "ab") as output:
            output.write(f"$ {command_line(argv)}\n".encode())
            output.flush()
            with self.start(*argv, stdout=output, stderr=subprocess.STDOUT, **options) as process:
                return process.wait()

    def output(self, *argv: object, **options) -> str:
        """Runs a command and returns what it printed to standard output; its standard error goes to the step's log."""
        with open(self.log_path, "ab") as log, self.start(*argv, stdout=subprocess.PIPE, stderr=log, **options) as process:
            text = process.communicate()[0].decode()
        if process.returncode != 0:
            raise StepFailed(f"{command_line(argv)} {exit_words(process.returncode)}")
        return text

    def start(self, *argv: object, env: dict[str, str] | None = None, **options) -> subprocess.Popen:
        """Starts a process in a session of its own, so that Ctrl-C reaches the runner alone."""
        if _stopping.is_set():
            raise StepFailed("interrupted")
        # No test counts or finds limits for the user, or for another test.
        environment = os.environ | {MARK: str(self.scratch), "XDG_DATA_HOME": str(self.scratch)} | (env or {})
        options = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "start_new_session": True} | options
        try:
            return subprocess.Popen([str(word) for word in argv], env=environment, **options)
        except OSError as error:
            raise StepFailed(f"cannot start {argv[0]}: {error.strerror}") from error

    def say(self, line: str) -> None:
        """Prints a line about the step, and writes it to its log."""
        with open(self.log_path, "a") as log:
            print(line, file=log)
        report(f"{self.step.name}: {line}")


def command_line(argv: tuple[object, ...]) -> str:
    return shlex.join(str(word) for word in argv)


def exit_words(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


_begun = time.monotonic()
_print_lock = threading.Lock()
# Set once the run is being ended: a step that goes on in its thread starts nothing more.
_stopping = threading.Event()


def report(line: str) -> None:
    """Prints a line with the seconds since the start."""
    with _print_lock:
        print(f"[{time.monotonic() - _begun:4.0f} s] {line}", flush=True)


def cannot_run(reason: str) -> NoReturn:
    print(f"test: {reason}", file=sys.stderr)
    sys.exit(2)


def selected(steps: list[Step], names: list[str]) -> list[Step]:
    """The named steps and everything they need; all steps if none is named."""
    if not names:
        return steps
    by_name = {step.name: step for step in steps}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        cannot_run(f"there is no step '{unknown[0]}'; the steps are: {', '.join(by_name)}")
    wanted: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += [need for need in by_name[name].after if need in by_name]
    return [step for step in steps if step.name in wanted]


def execute(steps: list[Step], only_tests: list[str]) -> int:
    """Runs the steps, prints the table and the failures, and returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    end_stale_runs()
    logs = TARGET / "test-logs"
    try:
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
    except OSError as error:
        cannot_run(f"cannot write to {TARGET}: {error.strerror}; choose another directory with CARGO_TARGET_DIR")
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
    # Held until this process ends: who can lock it knows that the run is over.
    lock = open(scratch / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    jobs: list[Job] = []
    try:
        run_all(steps, scratch, logs, only_tests, jobs)
    except Interrupted as stop:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        report("interrupted: ending everything that was started")
        return stop.code
    finally:
        _stopping.set()
        end_processes(scratch)
        failed = any(job.error for job in jobs)
        if failed:
            keep_peer_logs(scratch, logs / "peers")
        shutil.rmtree(scratch, ignore_errors=True)
    return conclude(steps, jobs, logs)


def interrupt(number: int, _frame: object) -> None:
    raise Interrupted(number)


def run_all(steps: list[Step], scratch: Path, logs: Path, only_tests: list[str], jobs: list[Job]) -> None:
    """Starts each step when its turn has come, until all have ended or cannot start. Fills `jobs` in the order of the starts."""
    # One more than there are: no step computes all the time.
    room_for = len(os.sched_getaffinity(0)) + 1
    names = {step.name for step in steps}
    passed: set[str] = set()
    waiting = list(steps)
    running: list[Job] = []
    ended: queue.Queue[Job] = queue.Queue()
    while True:
        for step in list(waiting):
            ready = all(need in passed for need in step.after if need in names)
            room = not running or sum(job.step.load for job in running) + step.load <= room_for
            turn = step.lane is None or all(job.step.lane != step.lane for job in running)
            if ready and room and turn:
                waiting.remove(step)
                job = Job(step, scratch, logs / f"{step.name.replace(' ', '-')}.log", only_tests)
                jobs.append(job)
                running.append(job)
                report(f"{step.name}: started")
                threading.Thread(target=perform, args=(job, ended), daemon=True).start()
        if not running:
            return
        job = ended.get()
        running.remove(job)
        if job.error is None:
            passed.add(job.step.name)
            report(f"{job.step.name}: passed in {job.seconds:.0f} s")
        else:
            report(f"{job.step.name}: FAILED after {job.seconds:.0f} s: {job.error}")


def perform(job: Job, ended: "queue.Queue[Job]") -> None:
    try:
        job.step.action(job)
    except Exception as error:  # noqa: BLE001 - a fault in a step's own code fails the step, not the run.
        job.error = error
        if not isinstance(error, StepFailed):
            job.error = StepFailed(f"{type(error).__name__}: {error}")
    job.seconds = time.monotonic() - job.started
    ended.put(job)


def conclude(steps: list[Step], jobs: list[Job], logs: Path) -> int:
    """Prints the table of steps, then what failed. The last lines are the ones to read."""
    by_name = {job.step.name: job for job in jobs}
    width = max(len(step.name) for step in steps)
    print(f"\n{'step':{width}}  began  seconds  result")
    for step in steps:
        job = by_name.get(step.name)
        if job is None:
            print(f"{step.name:{width}}      –        –  not run, because it needs a step that failed")
            continue
        print(f"{step.name:{width}}  {job.started - _begun:5.0f}  {job.seconds:7.0f}  {'FAILED' if job.error else 'passed'}")
    print(f"{'all':{width}}  {0:5}  {time.monotonic() - _begun:7.0f}")

    failed = [job for job in jobs if job.error]
    for job in failed:
        lines = job.log_path.read_text(errors="replace").splitlines() if job.log_path.exists() else []
        print(f"\n--- the end of {display_path(job.log_path)}")
        print("\n".join(lines[-LOG_LINES_SHOWN:]))
    good, bad = count_tests(logs)
    print()
    for job in failed:
        print(f"FAILED: {job.step.name}: {job.error}")
        for failure in getattr(job.error, "failures", []):
            print(f"  {failure.what}\n    repeat: {failure.repeat}")
        if not getattr(job.error, "failures", []):
            print(f"    repeat: ./test --only {shlex.quote(job.step.name)}")
        print(f"    log: {display_path(job.log_path)}")
    if failed and (logs / "peers").exists():
        print(f"logs of the peers: {display_path(logs / 'peers')}")
    print(f"{good} passed, {max(bad, len(failed))} failed")
    return 1 if failed else 0


def display_path(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def count_tests(logs: Path) -> tuple[int, int]:
    """How many tests passed and failed, by the closing lines of libtest and unittest in the logs."""
    good = bad = 0
    for log in logs.rglob("*.log"):
        text = log.read_text(errors="replace")
        for passed, failed in re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed", text, re.M):
            good += int(passed)
            bad += int(failed)
        good += sum(int(ran) for ran in re.findall(r"^Ran (\d+) tests? in", text, re.M))
    return good, bad


def keep_peer_logs(scratch: Path, kept: Path) -> None:
    """Copies what the peers wrote (brokers, servers, browsers) to where it outlives the run."""
    for pattern in ("**/*.log", "**/*.txt", "**/*.conf", "**/log/*"):
        for found in scratch.glob(pattern):
            if found.is_file():
                place = kept / found.relative_to(scratch)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, place)


def marked_processes(scratch: str) -> Iterator[int]:
    """The processes that a run with this scratch directory has started, directly or through others."""
    mark = f"{MARK}={scratch}".encode()
    for environ in glob.glob("/proc/[0-9]*/environ"):
        try:
            if mark in Path(environ).read_bytes().split(b"\0"):
                yield int(environ.split("/")[2])
        except OSError:
            continue  # It has ended, or belongs to another user.


def end_processes(scratch: Path | str) -> None:
    """Ends every process of a run: in order first, then by force."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
        deadline = time.monotonic() + seconds
        for pid in list(marked_processes(str(scratch))):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        while any(marked_processes(str(scratch))):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        else:
            return


def end_stale_runs() -> None:
    """Cleans up behind runs that were killed: their processes, then their directories."""
    for scratch in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
        try:
            with open(scratch / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # It goes on, belongs to another user, or is being made.
        end_processes(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
