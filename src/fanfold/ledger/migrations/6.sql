-- One row a commit, so that a reader can follow a run; and indices by which a reader of one run meets no rows of others.
CREATE TABLE change (
    run INTEGER NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL,
    trials TEXT NOT NULL,                -- numbers of the trials asked, told or amended (JSON)
    batches TEXT NOT NULL,               -- tags of the batches written about (JSON)
    cells TEXT NOT NULL,                 -- trial and position of the evaluations (JSON)
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;
CREATE TABLE note (
    run INTEGER NOT NULL, seq INTEGER NOT NULL,      -- that of its change
    at REAL NOT NULL, text TEXT NOT NULL
);
CREATE INDEX note_run ON note (run, seq);
CREATE INDEX batch_run ON batch (run, created);
CREATE INDEX batch_state ON batch (state);
