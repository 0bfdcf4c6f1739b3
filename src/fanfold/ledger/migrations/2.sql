CREATE TABLE call (
    key BLOB NOT NULL UNIQUE,            -- hash of endpoint, request and sample
    run INTEGER,                         -- the run that paid for it; NULL outside a run
    model TEXT NOT NULL,                 -- provider/name
    request TEXT NOT NULL,               -- the body sent (JSON)
    reply TEXT NOT NULL,                 -- text, finish, usage (JSON)
    input_tokens INTEGER, output_tokens INTEGER,
    cost REAL,                           -- NULL: the price is not known
    started REAL NOT NULL, seconds REAL NOT NULL, tries INTEGER NOT NULL,
    batch TEXT                           -- tag of the provider batch it came from; NULL: realtime
);
CREATE TABLE batch (
    tag TEXT PRIMARY KEY,                -- made by us, sent along, written down before anything is submitted
    run INTEGER, model TEXT NOT NULL, endpoint TEXT NOT NULL,
    state TEXT NOT NULL,                 -- intent, submitted, done, abandoned
    remote TEXT,                         -- the provider's id
    requests INTEGER NOT NULL, created REAL NOT NULL, note TEXT
) WITHOUT ROWID;
CREATE TABLE batch_item (
    tag TEXT NOT NULL, custom_id TEXT NOT NULL, key BLOB NOT NULL, PRIMARY KEY (tag, custom_id)
) WITHOUT ROWID;
CREATE TABLE desk (run INTEGER PRIMARY KEY, counts TEXT NOT NULL);   -- cache hits, refusals and the like (JSON)
