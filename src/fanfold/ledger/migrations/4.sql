-- From here on `call` is only the cache of replies; what was paid is in `payment`, which nothing replaces.
-- Tables are added, none is changed: a process of an older version that works on this file can finish its work.
CREATE TABLE payment (
    id INTEGER PRIMARY KEY,
    run INTEGER,                         -- who paid; NULL outside a run
    key BLOB NOT NULL, model TEXT NOT NULL,
    cost REAL,                           -- NULL: not known
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    estimated INTEGER NOT NULL,          -- 1: the reply came without usage, the tokens are estimated from the text
    at REAL NOT NULL,                    -- when the call was sent
    seconds REAL NOT NULL, tries INTEGER NOT NULL,
    batch TEXT,                          -- tag of the provider batch; NULL: realtime
    why_full TEXT                        -- why a call that was to go in a batch was paid at full price
);
CREATE INDEX payment_run ON payment (run);
CREATE INDEX payment_unpriced ON payment (run) WHERE cost IS NULL;
CREATE TABLE owed (                      -- what a line of a batch may cost at most
    tag TEXT NOT NULL, key BLOB NOT NULL, worst REAL, PRIMARY KEY (tag, key)
) WITHOUT ROWID;
INSERT INTO payment
SELECT NULL, run, key, model, cost, coalesce(input_tokens, 0), coalesce(output_tokens, 0),
    CASE WHEN json_valid(reply) THEN coalesce(json_extract(reply, '$.cached_tokens'), 0) ELSE 0 END,
    0, started, seconds, tries, batch, NULL
FROM call ORDER BY rowid;
