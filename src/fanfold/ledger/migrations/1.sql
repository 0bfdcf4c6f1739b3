CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    elapsed REAL NOT NULL DEFAULT 0,     -- seconds of work, all parts of the run together
    status TEXT NOT NULL,                -- running, stopped, finished, failed
    reason TEXT,                         -- why it is not running, in words
    identity TEXT NOT NULL,              -- what must not change for a resume (JSON)
    meta TEXT NOT NULL                   -- how it was started (JSON)
);
CREATE TABLE run_case (
    run INTEGER NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL, seed INTEGER, data TEXT,
    PRIMARY KEY (run, position)
) WITHOUT ROWID;
CREATE TABLE trial (
    run INTEGER NOT NULL, number INTEGER NOT NULL,
    candidate TEXT NOT NULL,             -- canonical JSON
    asked_after INTEGER NOT NULL,        -- trials told before this one was asked
    told INTEGER,                        -- its place in the order of telling; NULL while open
    score REAL, dropped TEXT, evaluations INTEGER, cost REAL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE TABLE evaluation (
    run INTEGER NOT NULL, trial INTEGER NOT NULL, position INTEGER NOT NULL,
    key BLOB NOT NULL,                   -- hash of evaluator, candidate and case
    failure TEXT,                        -- NULL: it succeeded
    score REAL, data TEXT, message TEXT, detail TEXT,
    cost REAL NOT NULL, started REAL NOT NULL, seconds REAL NOT NULL, tries INTEGER NOT NULL,
    reused INTEGER NOT NULL,             -- 1: answered by an earlier evaluation with the same key
    PRIMARY KEY (run, trial, position)
) WITHOUT ROWID;
CREATE INDEX evaluation_key ON evaluation (key) WHERE failure IS NULL AND reused = 0;
CREATE TABLE blob (digest TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE snapshot (
    run INTEGER PRIMARY KEY, told INTEGER NOT NULL, asked INTEGER NOT NULL, state BLOB NOT NULL
);
