"""The queue in a SQLite file, as ``docs/sqlite-queue.md`` describes it: its schema, its transactions, its doorbell."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .errors import QueueError

#: ``Tdgq``: says whose database it is.
APPLICATION_ID = 0x54646771
VERSION = 2
#: Version 1 has the same columns without constraints; tidegate itself brings such a file to version 2.
VERSIONS = (1, 2)
#: Larger bodies are refused by every broker of tidegate's.
BODY_BYTES_MAX = 16 << 20

SCHEMA = """
CREATE TABLE queue (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL UNIQUE CHECK (typeof(name) = 'text')
);
CREATE TABLE task (
    seq       INTEGER PRIMARY KEY CHECK (seq BETWEEN 1 AND 9007199254740991),
    id        TEXT NOT NULL UNIQUE CHECK (typeof(id) = 'text'),
    queue     INTEGER NOT NULL CHECK (typeof(queue) = 'integer'),
    rank      INTEGER NOT NULL CHECK (typeof(rank) = 'integer' AND rank BETWEEN 0 AND 9),
    published INTEGER NOT NULL CHECK (typeof(published) = 'integer'),
    eta       INTEGER CHECK (typeof(eta) IN ('integer', 'null')),
    expires   INTEGER CHECK (typeof(expires) IN ('integer', 'null')),
    ukey      TEXT CHECK (typeof(ukey) IN ('text', 'null')),
    hold      INTEGER CHECK (typeof(hold) IN ('integer', 'null')),
    headers   TEXT CHECK (typeof(headers) IN ('text', 'null')),
    body      BLOB NOT NULL CHECK (typeof(body) IN ('blob', 'text'))
);
CREATE TABLE ready (
    queue   INTEGER NOT NULL CHECK (typeof(queue) = 'integer'),
    rank    INTEGER NOT NULL CHECK (typeof(rank) = 'integer' AND rank BETWEEN 0 AND 9),
    seq     INTEGER NOT NULL CHECK (typeof(seq) = 'integer'),
    retries INTEGER NOT NULL DEFAULT 0 CHECK (typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (typeof(crashes) = 'integer' AND crashes BETWEEN 0 AND 2147483647),
    PRIMARY KEY (queue, rank, seq)
) WITHOUT ROWID;
CREATE TABLE delayed (
    at      INTEGER NOT NULL CHECK (typeof(at) = 'integer'),
    seq     INTEGER NOT NULL CHECK (typeof(seq) = 'integer'),
    retries INTEGER NOT NULL DEFAULT 0 CHECK (typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (typeof(crashes) = 'integer' AND crashes BETWEEN 0 AND 2147483647),
    PRIMARY KEY (at, seq)
) WITHOUT ROWID;
CREATE TABLE consumer (
    id    INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id BETWEEN 1 AND 9007199254740991),
    name  TEXT NOT NULL CHECK (typeof(name) = 'text'),
    until INTEGER NOT NULL CHECK (typeof(until) = 'integer'),
    lease INTEGER NOT NULL CHECK (typeof(lease) = 'integer' AND lease BETWEEN 0 AND 4611686018427387903)
);
CREATE TABLE subscription (
    consumer INTEGER NOT NULL CHECK (typeof(consumer) = 'integer'),
    queue    INTEGER NOT NULL CHECK (typeof(queue) = 'integer'),
    PRIMARY KEY (consumer, queue)
) WITHOUT ROWID;
CREATE TABLE running (
    consumer INTEGER NOT NULL CHECK (typeof(consumer) = 'integer'),
    seq      INTEGER NOT NULL CHECK (typeof(seq) = 'integer'),
    retries  INTEGER NOT NULL CHECK (typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647),
    crashes  INTEGER NOT NULL CHECK (typeof(crashes) = 'integer' AND crashes BETWEEN 0 AND 2147483647),
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;
CREATE TABLE dead (
    seq       INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL CHECK (typeof(at) = 'integer'),
    retries   INTEGER NOT NULL CHECK (typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647),
    reason    TEXT NOT NULL CHECK (typeof(reason) = 'text'),
    traceback TEXT CHECK (typeof(traceback) IN ('text', 'null'))
);
CREATE TABLE uniq (
    key         TEXT PRIMARY KEY CHECK (typeof(key) = 'text'),
    id          TEXT NOT NULL CHECK (typeof(id) = 'text'),
    until       INTEGER NOT NULL CHECK (typeof(until) = 'integer'),
    past_settle INTEGER NOT NULL CHECK (typeof(past_settle) = 'integer' AND past_settle BETWEEN 0 AND 1)
) WITHOUT ROWID;
CREATE TABLE revoked (
    n     INTEGER PRIMARY KEY AUTOINCREMENT CHECK (n BETWEEN 1 AND 9007199254740991),
    id    TEXT NOT NULL UNIQUE CHECK (typeof(id) = 'text'),
    until INTEGER NOT NULL CHECK (typeof(until) = 'integer')
);
CREATE TABLE result (
    id    TEXT PRIMARY KEY CHECK (typeof(id) = 'text'),
    until INTEGER NOT NULL CHECK (typeof(until) = 'integer'),
    state TEXT NOT NULL CHECK (typeof(state) = 'text'),
    value TEXT CHECK (typeof(value) IN ('text', 'null')),
    error TEXT CHECK (typeof(error) IN ('text', 'null'))
);
CREATE INDEX result_until ON result (until);
CREATE INDEX uniq_until ON uniq (until);
"""

#: How long a lock of another process is waited for, in seconds.
BUSY_TIMEOUT = 10.0
#: Between two tries: short, so that several writers get their turns.
BUSY_PAUSE_MIN, BUSY_PAUSE_MAX = 0.0001, 0.0005
#: For how long a revoke waits for its task, and a result that it is the cause of is kept; milliseconds.
REVOKE_MEMORY_MS = 86_400_000
RESULT_TTL_MS = 3_600_000


class Envelope(NamedTuple):
    """A task on its way into the queue. Times are milliseconds since 1970."""

    id: str
    queue: str
    priority: int
    eta: Optional[int]
    expires: Optional[int]
    unique: Optional[str]
    #: Milliseconds for which the unique key is held.
    hold: Optional[int]
    body: bytes


def _prepare(path: str) -> None:
    """Makes an empty file for a new database, for its user alone: SQLite would make one that other users can read."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class QueueFile:
    """One connection to the file."""

    def __init__(self, path: str, now: Callable[[], int]) -> None:
        self._path = path
        self._now = now
        try:
            _prepare(path)
            # Transactions are begun and ended here, and locks waited for in fair turns.
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                self._open()
                # Never through a symbolic link: the byte would go elsewhere.
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._bell = os.open(path + "-bell", flags, 0o600)
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise QueueError(f"cannot open the queue {path}: {error}") from error

    def close(self) -> None:
        self._connection.close()
        os.close(self._bell)

    def _open(self) -> None:
        self._retry(lambda: self._connection.execute("PRAGMA journal_mode=WAL"))
        self._connection.execute("PRAGMA synchronous=FULL")
        if self._version() in VERSIONS:
            return
        with self._transaction():
            if self._version() != 0:
                return
            for statement in SCHEMA.split(";"):
                if statement.strip():
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version={VERSION}")

    def _version(self) -> int:
        """The schema's version; 0 for an empty file. Refuses what is not ours or newer than this module."""
        owner = self._number("PRAGMA application_id")
        version = self._number("PRAGMA user_version")
        if owner == 0 and version == 0 and self._number("SELECT count(*) FROM sqlite_master") == 0:
            return 0
        if owner != APPLICATION_ID:
            raise QueueError(f"{self._path} is a SQLite database of another program: choose another path for the queue")
        if version not in VERSIONS:
            raise QueueError(
                f"{self._path} has layout {version}, and this module knows layouts up to {VERSION}: use a newer module"
            )
        return version

    def _number(self, sql: str) -> int:
        row = self._retry(lambda: self._connection.execute(sql).fetchone())
        return int(row[0])

    def _retry(self, action: Callable[[], Any]) -> Any:
        deadline, pause = time.monotonic() + BUSY_TIMEOUT, BUSY_PAUSE_MIN
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                busy = "locked" in str(error) or "busy" in str(error)
                if not busy or time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, BUSY_PAUSE_MAX)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._retry(lambda: self._connection.execute("BEGIN IMMEDIATE"))
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _ring(self) -> None:
        try:
            os.pwrite(self._bell, b"!", 0)
        except OSError:
            # Workers look by themselves within a second.
            pass

    def publish(self, batch: List[Envelope]) -> List[str]:
        """Stores all of them, or none; their ids, or for a duplicate that of the task it is one of."""
        try:
            with self._transaction() as connection:
                queues: Dict[str, int] = {}
                ids = [self._publish(connection, queues, envelope) for envelope in batch]
        except sqlite3.Error as error:
            raise QueueError(f"cannot publish to {self._path}: {error}") from error
        self._ring()
        return ids

    def _publish(self, connection: sqlite3.Connection, queues: Dict[str, int], envelope: Envelope) -> str:
        now = self._now()
        if envelope.unique is not None:
            sql = "SELECT id FROM uniq WHERE key = ? AND until > ?"
            row = connection.execute(sql, (envelope.unique, now)).fetchone()
            if row is not None:
                return str(row[0])
        queue = queues.get(envelope.queue)
        if queue is None:
            connection.execute("INSERT OR IGNORE INTO queue (name) VALUES (?)", (envelope.queue,))
            row = connection.execute("SELECT id FROM queue WHERE name = ?", (envelope.queue,)).fetchone()
            queue = queues[envelope.queue] = int(row[0])
        rank = 9 - envelope.priority
        values = (
            envelope.id,
            queue,
            rank,
            now,
            envelope.eta,
            envelope.expires,
            envelope.unique,
            envelope.hold,
            None,
            envelope.body,
        )
        sql = (
            "INSERT INTO task (id, queue, rank, published, eta, expires, ukey, hold, headers, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            # Only for an id that is there: IGNORE would drop rows that violate any other constraint, too.
            "ON CONFLICT (id) DO NOTHING"
        )
        cursor = connection.execute(sql, values)
        if cursor.rowcount == 0:
            return envelope.id
        seq = cursor.lastrowid
        if envelope.eta is not None and envelope.eta > now:
            connection.execute("INSERT INTO delayed (at, seq) VALUES (?, ?)", (envelope.eta, seq))
        else:
            connection.execute("INSERT INTO ready (queue, rank, seq) VALUES (?, ?, ?)", (queue, rank, seq))
        if envelope.unique is not None:
            sql = "INSERT OR REPLACE INTO uniq (key, id, until, past_settle) VALUES (?, ?, ?, 0)"
            connection.execute(sql, (envelope.unique, envelope.id, now + (envelope.hold or 0)))
        return envelope.id

    def result(self, task: str) -> Optional[Tuple[str, Optional[str], Optional[str]]]:
        """State, value and error of a task, the last two as JSON; None if there is no result yet."""
        sql = "SELECT state, value, error FROM result WHERE id = ? AND until > ?"
        try:
            row = self._retry(lambda: self._connection.execute(sql, (task, self._now())).fetchone())
        except sqlite3.Error as error:
            raise QueueError(f"cannot read from {self._path}: {error}") from error
        return None if row is None else (row[0], row[1], row[2])

    def revoke(self, task: str) -> None:
        """Drops a task that waits, asks its worker to end one that runs, and rejects one that is enqueued later."""
        try:
            with self._transaction() as connection:
                now = self._now()
                sql = "INSERT OR REPLACE INTO revoked (id, until) VALUES (?, ?)"
                connection.execute(sql, (task, now + REVOKE_MEMORY_MS))
                sql = "SELECT seq, queue, rank, ukey FROM task WHERE id = ?"
                row = connection.execute(sql, (task,)).fetchone()
                if row is not None:
                    self._drop_waiting(connection, task, row, now)
        except sqlite3.Error as error:
            raise QueueError(f"cannot revoke a task of {self._path}: {error}") from error
        self._ring()

    def _drop_waiting(self, connection: sqlite3.Connection, task: str, row: Tuple[Any, ...], now: int) -> None:
        seq, queue, rank, ukey = row
        waited = connection.execute(
            "DELETE FROM ready WHERE queue = ? AND rank = ? AND seq = ?", (queue, rank, seq)
        ).rowcount
        waited += connection.execute("DELETE FROM delayed WHERE seq = ?", (seq,)).rowcount
        if waited == 0:
            return
        connection.execute("DELETE FROM task WHERE seq = ?", (seq,))
        if ukey is not None:
            connection.execute("DELETE FROM uniq WHERE key = ? AND id = ? AND past_settle = 0", (ukey, task))
        sql = "INSERT OR REPLACE INTO result (id, until, state, value, error) VALUES (?, ?, 'revoked', NULL, NULL)"
        connection.execute(sql, (task, now + RESULT_TTL_MS))
