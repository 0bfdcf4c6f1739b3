CREATE TABLE learnt (                    -- what models, or the servers they are at, have shown of themselves
    model TEXT NOT NULL,                 -- its id and address
    name TEXT NOT NULL, value TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (model, name)
) WITHOUT ROWID;
