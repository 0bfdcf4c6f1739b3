-- Tables and indices are added, none is changed: a process of an older version that works on this file can finish.
CREATE TABLE cell_call (                 -- the model calls of an evaluation, where it made any
    run INTEGER NOT NULL, trial INTEGER NOT NULL, position INTEGER NOT NULL,
    keys BLOB NOT NULL,                  -- the keys of its calls, 16 bytes each, in the order of the replies
    cached BLOB NOT NULL,                -- one byte for each: 1 where the reply was not paid for by this evaluation
    PRIMARY KEY (run, trial, position)
) WITHOUT ROWID;
CREATE TABLE request (                   -- what a person asks of a run from elsewhere: to stop, a higher limit, feedback
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL,
    what TEXT NOT NULL, value TEXT NOT NULL,         -- its kind, and what is asked (JSON)
    taken REAL                           -- when the run obeyed; NULL: not yet
);
CREATE INDEX request_run ON request (run, id);
CREATE TABLE comment (                   -- what a person wrote about a run, or about one of its trials
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, trial INTEGER, at REAL NOT NULL, text TEXT NOT NULL
);
CREATE INDEX comment_run ON comment (run, id);
-- Few evaluations fail or are reused: a reader finds these without meeting the others.
CREATE INDEX evaluation_failed ON evaluation (run, trial, position, failure) WHERE failure IS NOT NULL;
CREATE INDEX evaluation_reused ON evaluation (run) WHERE reused = 1;
