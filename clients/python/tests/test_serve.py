"""A real child, spoken to as the worker does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

from tests.child import TIMEOUT, Child, frame


class Greeting(unittest.TestCase):
    def test_a_child_says_what_it_can_do(self) -> None:
        with Child() as child:
            ready = child.hear()
            self.assertEqual((ready["type"], ready["version"], ready["interrupt"]), ("ready", 1, True))
            self.assertIn("add", ready["handlers"])
            self.assertIn("handlers.unnamed", ready["handlers"])
            self.assertEqual(child.end(), 0)

    def test_an_app_of_its_own_has_only_its_own_handlers(self) -> None:
        with Child("handlers:other") as child:
            self.assertEqual(child.hear()["handlers"], ["other"])
            self.assertEqual(child.run("other")["value"], "other")

    def test_another_version_is_refused(self) -> None:
        with Child(version=2) as child:
            self.assertIsNone(child.hear())
            self.assertEqual(child.process.wait(TIMEOUT), 1)
            self.assertIn(b"another protocol than version 1", child.process.stderr.read())

    def test_without_a_worker_it_says_how_it_is_started(self) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "TIDEGATE_SOCKET"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        done = subprocess.run(
            [sys.executable, "-m", "tidegate", "worker", "tests.handlers"],
            env=environment,
            capture_output=True,
            timeout=TIMEOUT,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"started by a worker", done.stderr)


class Runs(unittest.TestCase):
    def setUp(self) -> None:
        self.child = Child(max_frame=100_000)
        self.addCleanup(self.child.__exit__)
        self.assertEqual(self.child.hear()["type"], "ready")

    def at_work(self, task: str, *args: object, **extra: object) -> int:
        self.child.say(self.child.order(task, *args, **extra))
        self.assertEqual(self.child.process.stdout.readline(), b"at work\n")
        return self.child.run_number

    def test_values_come_back(self) -> None:
        self.assertEqual(self.child.run("add", 1, 2), {"type": "done", "run": 1, "value": 3})
        self.assertEqual(self.child.run("handlers.unnamed")["value"], "by its own name")
        self.assertEqual(self.child.run("add", "ä", kwargs={"y": "\u0000😀"})["value"], "ä\u0000😀")
        self.assertEqual(self.child.run("info", retries=3)["value"], ["id-4", "info", 3])

    def test_errors_come_back_with_where_they_happened(self) -> None:
        answer = self.child.run("fail")
        self.assertEqual((answer["type"], answer["error"]["kind"]), ("failed", "ValueError"))
        self.assertEqual(answer["error"]["message"], "deep inside")
        self.assertIn("in inner", answer["error"]["traceback"])
        self.assertNotIn("_serve.py", answer["error"]["traceback"])
        self.assertEqual(self.child.run("exit")["error"]["kind"], "SystemExit")
        self.assertEqual(self.child.run("async_cancelled")["error"]["kind"], "CancelledError")

    def test_retries_are_asked_for(self) -> None:
        answer = self.child.run("retry")
        self.assertEqual((answer["type"], answer["after_ms"], answer["error"]["kind"]), ("retry", 1500, "ValueError"))
        self.assertEqual(answer["error"]["message"], "again")
        self.assertEqual(self.child.run("limited_retries")["type"], "retry")
        last = self.child.run("limited_retries", retries=1)
        self.assertEqual((last["type"], last["final"]), ("failed", True))

    def test_what_cannot_run_is_rejected(self) -> None:
        self.assertEqual(self.child.run("reject")["reason"], "never")
        self.assertIn("no handler is named 'nobody'", self.child.run("nobody")["reason"])
        self.assertIn("the arguments do not fit add: missing", self.child.run("add")["reason"])
        self.assertIn("unexpected keyword argument 'z'", self.child.run("add", 1, kwargs={"z": 1})["reason"])
        self.assertEqual(self.child.run("add", 1, "2")["error"]["kind"], "TypeError")

    def test_results_that_do_not_travel_are_failures(self) -> None:
        self.assertIn("cannot be written as JSON", self.child.run("not_json")["error"]["message"])
        self.assertEqual(self.child.run("large", 200_000)["error"]["kind"], "ResultTooLarge")
        self.assertEqual(len(self.child.run("large", 90_000)["value"]), 90_000)

    def test_many_in_one_write_are_answered_in_order(self) -> None:
        self.child.socket.sendall(b"".join(frame(self.child.order("add", number)) for number in range(500)))
        self.assertEqual([self.child.hear()["value"] for _ in range(500)], list(range(500)))

    def test_a_frame_may_come_byte_by_byte(self) -> None:
        for byte in frame(self.child.order("add", 1, 1)):
            self.child.socket.sendall(bytes([byte]))
        self.assertEqual(self.child.hear()["value"], 2)

    def test_coroutines_share_one_event_loop(self) -> None:
        self.assertEqual(self.child.run("async_loop")["value"], self.child.run("async_loop")["value"])

    def test_the_soft_limit_is_raised_in_functions_and_coroutines(self) -> None:
        for task, value in (("at_work", "caught"), ("async_at_work", ["caught", 0])):
            run = self.at_work(task, True, soft_ms=10)
            self.child.say({"type": "soft", "run": run})
            self.child.poke()
            self.assertEqual(self.child.hear(), {"type": "done", "run": run, "value": value})
            run = self.at_work(task, False, soft_ms=10)
            self.child.say({"type": "soft", "run": run})
            self.child.poke()
            self.assertEqual(self.child.hear(), {"type": "soft-limit", "run": run, "limit_ms": 10})

    def test_a_handlers_own_limit_needs_no_worker(self) -> None:
        self.assertEqual(self.child.run("own_limit"), {"type": "soft-limit", "run": 1, "limit_ms": 20.0})

    def until_told(self) -> int:
        """A run that goes on until `self.tell()`."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.fifo = os.path.join(directory.name, "fifo")
        os.mkfifo(self.fifo)
        return self.at_work("until_told", self.fifo)

    def tell(self) -> None:
        open(self.fifo, "w").close()

    def test_a_soft_limit_for_a_run_that_is_over_hits_nobody(self) -> None:
        self.assertEqual(self.child.run("add", 1, 1)["value"], 2)
        run = self.until_told()
        waiting = self.child.order("add", 1, 1)
        self.child.say(waiting)
        self.child.say({"type": "soft", "run": run - 1})
        self.child.say({"type": "recall", "run": waiting["run"]})
        self.child.poke()
        # Now it has looked.
        self.assertEqual(self.child.hear(), {"type": "returned", "run": waiting["run"]})
        self.tell()
        self.assertEqual(self.child.hear(), {"type": "done", "run": run, "value": "told"})

    def test_a_soft_limit_that_comes_before_its_run_has_begun_is_not_lost(self) -> None:
        first = self.until_told()
        second = self.child.order("at_work", True, soft_ms=10)
        self.child.say(second)
        self.child.say({"type": "soft", "run": second["run"]})
        self.tell()
        self.child.poke()
        self.assertEqual(self.child.hear()["run"], first)
        # Whether it has begun by then or not.
        self.assertIn(self.child.hear()["type"], ("done", "soft-limit"))

    def test_what_waits_is_given_back_when_it_is_asked_for(self) -> None:
        first = self.until_told()
        second, third = self.child.order("add", 1, 1), self.child.order("add", 2, 2)
        self.child.say(second)
        self.child.say(third)
        self.child.say({"type": "recall", "run": second["run"]})
        self.child.poke()
        self.assertEqual(self.child.hear(), {"type": "returned", "run": second["run"]})
        self.tell()
        self.assertEqual(self.child.hear()["run"], first)
        self.assertEqual(self.child.hear(), {"type": "done", "run": third["run"], "value": 4})

    def test_sigterm_runs_finally_blocks(self) -> None:
        self.at_work("with_finally")
        self.child.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.child.process.wait(TIMEOUT), 128 + signal.SIGTERM)
        self.assertEqual(self.child.process.stdout.read(), b"cleaned up\n")

    def test_a_fork_in_a_handler_answers_once(self) -> None:
        self.assertEqual(self.child.run("fork")["value"], "one")
        self.assertEqual(self.child.run("add", 1, 1), {"type": "done", "run": 2, "value": 2})

    def test_prints_and_logs_are_written_before_the_answer(self) -> None:
        self.child.run("say")
        self.assertEqual(self.child.end(), 0)
        self.assertEqual(self.child.process.stdout.read(), b"out\n")
        self.assertEqual(self.child.process.stderr.read(), b"err\nWARNING [id-1] mine: logged\n")

    def test_the_end_of_the_socket_is_the_end(self) -> None:
        self.child.say(self.child.order("add", 1, 1))
        self.assertEqual(self.child.end(), 0)
        self.assertEqual(self.child.hear()["value"], 2)
        self.assertIsNone(self.child.hear())


class Registration(unittest.TestCase):
    def test_names_are_taken_once(self) -> None:
        from tidegate import App

        app = App()
        app.task(name="one")(lambda: None)
        with self.assertRaisesRegex(ValueError, "there is a handler named 'one' already"):
            app.task(name="one")(lambda: None)
        with self.assertRaisesRegex(ValueError, "must be above 0"):
            app.task(name="two", soft_limit=0)(lambda: None)
        self.assertEqual(list(app), ["one"])
        self.assertEqual(json.dumps(len(app)), "1")
