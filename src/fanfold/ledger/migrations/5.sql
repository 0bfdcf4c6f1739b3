CREATE TABLE superseded (                -- failures that the search was told and that were evaluated again since
    run INTEGER NOT NULL, trial INTEGER NOT NULL, position INTEGER NOT NULL,
    failure TEXT NOT NULL, message TEXT, detail TEXT, cost REAL NOT NULL,
    told_score REAL,                     -- the score of the trial as the search was told it
    PRIMARY KEY (run, trial, position)
) WITHOUT ROWID;
