-- The counts of a large run that has ended, so that nobody reads all its rows to list it.  Dropped when it continues.
CREATE TABLE run_count (
    run INTEGER PRIMARY KEY, evaluations INTEGER NOT NULL, failures INTEGER NOT NULL, cost REAL NOT NULL,
    trials INTEGER NOT NULL, best REAL
);
