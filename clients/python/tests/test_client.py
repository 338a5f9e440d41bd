"""The client on a file of its own; the worker's part is played with plain SQL."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import threading
import time
import traceback
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

from tidegate import App, Client, QueueError, ResultTimeout, TaskFailed
from tidegate._queue_file import Envelope


class OnFile(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "queue.db")
        self.client = Client(f"sqlite:{self.path}")
        self.addCleanup(self.client.close)

    def another(self) -> Client:
        client = Client(self.path)
        self.addCleanup(client.close)
        return client

    def rows(self, sql: str, *values: object) -> list:
        connection = sqlite3.connect(self.path, timeout=60)
        try:
            with connection:
                return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    def finish(self, task: str, state: str, value: object = None, error: object = None) -> None:
        until = int((time.time() + 60) * 1000)
        sql = "INSERT OR REPLACE INTO result VALUES (?, ?, ?, ?, ?)"
        self.rows(sql, task, until, state, json.dumps(value), error and json.dumps(error))


class Enqueue(OnFile):
    def test_a_task_is_stored_as_documented(self) -> None:
        task = self.client.enqueue("mail.send", 7, to="a@example.org", queue="mail", priority=3, soft_limit=10)
        found = self.rows("SELECT t.id, q.name, t.rank, t.eta, t.body FROM task t JOIN queue q ON q.id = t.queue")
        body = {"task": "mail.send", "args": [7], "kwargs": {"to": "a@example.org"}, "soft_limit": 10.0}
        self.assertEqual(found[0][:4], (task, "mail", 6, None))
        self.assertEqual(json.loads(found[0][4]), body)
        self.assertEqual(len(self.rows("SELECT * FROM ready")), 1)
        self.assertEqual(self.rows("PRAGMA user_version")[0], (2,))
        self.assertEqual(Path(self.path + "-bell").read_bytes(), b"!")

    def test_functions_go_by_the_name_they_were_registered_with(self) -> None:
        app = App()

        @app.task(name="named")
        def function() -> None:
            """Nothing."""

        self.client.enqueue(function)
        self.assertEqual(json.loads(self.rows("SELECT body FROM task")[0][0]), {"task": "named"})
        with self.assertRaisesRegex(ValueError, "nor registered with @task"):
            self.client.enqueue(print)

    def test_later_is_later(self) -> None:
        before = time.time() * 1000
        self.client.enqueue("a", countdown=60)
        self.client.enqueue("a", eta=datetime.now(timezone.utc) + timedelta(seconds=60), expires=timedelta(hours=1))
        self.client.enqueue("a", eta=datetime(2020, 1, 1, tzinfo=timezone.utc))
        dues = [at for (at,) in self.rows("SELECT at FROM delayed")]
        self.assertEqual(len(dues), 2)
        for at in dues:
            self.assertTrue(before + 59_000 <= at <= time.time() * 1000 + 60_000)
        self.assertEqual(len(self.rows("SELECT * FROM ready")), 1)
        self.assertEqual(len(self.rows("SELECT * FROM task WHERE expires > ?", before + 3_500_000)), 1)

    def test_what_the_file_refuses_is_an_error_and_stores_nothing(self) -> None:
        for priority in (1.5, True, -1, 10, "1"):
            with self.assertRaisesRegex(ValueError, "priority"):
                self.client.enqueue("add", args=[1, 2], priority=priority)
        # A value that only the file's own checks catch.
        envelope = Envelope("odd", "default", 1.5, None, None, None, None, b"{}")  # type: ignore[arg-type]
        with self.assertRaisesRegex(QueueError, "CHECK"):
            self.client._opened().publish([envelope])

    def test_a_unique_key_is_taken_once(self) -> None:
        first = self.client.enqueue("a", unique="key")
        self.assertEqual(self.client.enqueue("a", unique="key"), first)
        self.assertNotEqual(self.client.enqueue("a", unique="other"), first)
        self.assertEqual(len(self.rows("SELECT * FROM task")), 2)

    def test_an_id_is_stored_once(self) -> None:
        self.assertEqual(self.client.enqueue("a", task_id="mine"), "mine")
        self.assertEqual(self.client.enqueue("a", task_id="mine"), "mine")
        self.assertEqual(len(self.rows("SELECT * FROM ready")), 1)

    def test_many_are_stored_together_or_not_at_all(self) -> None:
        ids = self.client.enqueue_many({"task": "a", "args": [number]} for number in range(1000))
        self.assertEqual(ids, sorted(set(ids), key=ids.index))
        self.assertEqual(len(self.rows("SELECT * FROM ready")), 1000)
        with self.assertRaises(ValueError):
            self.client.enqueue_many([{"task": "a"}, {"task": "a", "priority": 10}])
        self.assertEqual(len(self.rows("SELECT * FROM ready")), 1000)

    def test_the_longest_body_is_a_setting(self) -> None:
        client = Client(self.path, max_body=1000)
        self.addCleanup(client.close)
        client.enqueue("a", "x" * 900)
        with self.assertRaisesRegex(ValueError, "above the limit of 1000.*raise max_body"):
            client.enqueue("a", "x" * 1000)

    def test_what_makes_no_sense_is_refused(self) -> None:
        for wrong in (
            {"priority": 10},
            {"queue": "\n"},
            {"task_id": "x" * 256},
            {"countdown": -1},
            {"countdown": 1, "eta": datetime.now(timezone.utc)},
            {"eta": datetime(2030, 1, 1)},
            {"x": float("nan")},
            {"x": "y" * (17 << 20)},
        ):
            with self.subTest(wrong=list(wrong)), self.assertRaises(ValueError):
                self.client.enqueue("a", **wrong)
        with self.assertRaisesRegex(ValueError, "a task has no colour"):
            self.client.enqueue_many([{"task": "a", "colour": "red"}])

    def test_threads_and_processes_share_a_file(self) -> None:
        def publish(client: Client) -> None:
            for _ in range(50):
                client.enqueue("a")

        threads = [threading.Thread(target=publish, args=(self.client,)) for _ in range(2)]
        threads += [threading.Thread(target=publish, args=(self.another(),)) for _ in range(2)]
        self.client.enqueue("a")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                publish(self.client)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(self.rows("SELECT * FROM ready")), 251)


class Results(OnFile):
    def test_a_result_is_waited_for(self) -> None:
        task = self.client.enqueue("a")
        with self.assertRaises(ResultTimeout):
            self.client.result(task, timeout=0)
        self.finish(task, "retrying")
        with self.assertRaises(TimeoutError):
            self.client.result(task, timeout=0.01)
        worker = threading.Thread(target=self.finish, args=(task, "succeeded", {"x": [1]}))
        worker.start()
        self.assertEqual(self.client.result(task, timeout=60), {"x": [1]})
        worker.join()

    def test_a_failure_is_raised_with_what_is_known(self) -> None:
        task = self.client.enqueue("a")
        self.finish(task, "failed", error={"kind": "ValueError", "message": "no", "traceback": "line 1"})
        with self.assertRaises(TaskFailed) as raised:
            self.client.result(task)
        error = raised.exception
        self.assertEqual((error.state, error.kind, error.message, error.traceback), ("failed", "ValueError", "no", "line 1"))
        self.assertEqual(str(error), f"task {task} failed: ValueError: no")


class Revoke(OnFile):
    def test_a_waiting_task_is_dropped_with_its_key(self) -> None:
        for options in ({}, {"countdown": 60}):
            task = self.client.enqueue("a", unique="key", **options)
            self.client.revoke(task)
            for table in ("task", "ready", "delayed", "uniq"):
                self.assertEqual(self.rows(f"SELECT * FROM {table}"), [], table)
            with self.assertRaisesRegex(TaskFailed, "revoked"):
                self.client.result(task, timeout=0)

    def test_a_task_that_nobody_knows_is_remembered(self) -> None:
        self.client.revoke("later")
        self.assertEqual(self.rows("SELECT id FROM revoked"), [("later",)])


class Files(OnFile):
    def test_files_of_others_and_of_other_versions_are_left_alone(self) -> None:
        self.rows("CREATE TABLE mine (x)")
        with self.assertRaisesRegex(QueueError, "of another program"):
            self.client.enqueue("a")
        os.remove(self.path)
        self.another().enqueue("a")
        self.rows("PRAGMA user_version=3")
        with self.assertRaisesRegex(QueueError, "has layout 3, and this module knows layouts up to 2"):
            self.another().enqueue("a")

    def test_a_file_of_the_layout_before_is_written_to_and_left_as_it_is(self) -> None:
        self.another().enqueue("a")
        self.rows("PRAGMA user_version=1")
        self.another().enqueue("b")
        self.assertEqual(len(self.rows("SELECT * FROM ready")), 2)
        self.assertEqual(self.rows("PRAGMA user_version")[0], (1,))

    def test_what_is_no_file_is_a_clear_error(self) -> None:
        with self.assertRaisesRegex(QueueError, "cannot open the queue /nowhere/queue.db"):
            Client("sqlite:/nowhere/queue.db").enqueue("a")
        with self.assertRaisesRegex(QueueError, "takes sqlite:PATH, not 'amqp://host'"):
            Client("amqp://host")
