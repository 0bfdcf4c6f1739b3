-- The counts of a large run when it ended, so that nobody reads all its rows to list it.  Not valid while it is running.
CREATE TABLE run_count (
    run INTEGER PRIMARY KEY, evaluations INTEGER NOT NULL, failures INTEGER NOT NULL, cost REAL NOT NULL,
    trials INTEGER NOT NULL, best REAL
);
