-- Blobs that are in a store beside the file: its address, and the name there.
CREATE TABLE stored_blob (
    digest TEXT PRIMARY KEY, store TEXT NOT NULL, name TEXT NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
