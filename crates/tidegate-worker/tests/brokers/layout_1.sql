-- The tables of a queue as tidegate 0.1.0 makes them.
CREATE TABLE queue (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL UNIQUE
);
CREATE TABLE task (
    seq       INTEGER PRIMARY KEY,
    id        TEXT NOT NULL UNIQUE,
    queue     INTEGER NOT NULL,
    rank      INTEGER NOT NULL,
    published INTEGER NOT NULL,
    eta       INTEGER,
    expires   INTEGER,
    ukey      TEXT,
    hold      INTEGER,
    headers   TEXT,
    body      BLOB NOT NULL
);
CREATE TABLE ready (
    queue INTEGER NOT NULL, rank INTEGER NOT NULL, seq INTEGER NOT NULL,
    retries INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, rank, seq)
) WITHOUT ROWID;
CREATE TABLE delayed (
    at INTEGER NOT NULL, seq INTEGER NOT NULL,
    retries INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (at, seq)
) WITHOUT ROWID;
CREATE TABLE consumer (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    name  TEXT NOT NULL,
    until INTEGER NOT NULL,
    lease INTEGER NOT NULL
);
CREATE TABLE subscription (
    consumer INTEGER NOT NULL, queue INTEGER NOT NULL, PRIMARY KEY (consumer, queue)
) WITHOUT ROWID;
CREATE TABLE running (
    consumer INTEGER NOT NULL, seq INTEGER NOT NULL,
    retries INTEGER NOT NULL, crashes INTEGER NOT NULL,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;
CREATE TABLE dead (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, retries INTEGER NOT NULL,
    reason TEXT NOT NULL, traceback TEXT
);
CREATE TABLE uniq (
    key TEXT PRIMARY KEY, id TEXT NOT NULL, until INTEGER NOT NULL,
    past_settle INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE revoked (
    n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, until INTEGER NOT NULL
);
CREATE TABLE result (
    id TEXT PRIMARY KEY, until INTEGER NOT NULL,
    state TEXT NOT NULL, value TEXT, error TEXT
);
CREATE INDEX result_until ON result (until);
CREATE INDEX uniq_until ON uniq (until);
PRAGMA application_id = 1415866225;
PRAGMA user_version = 1;
