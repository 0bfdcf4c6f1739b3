-- Which runs hold a blob.  A run that needs one no longer lets go of it; the last to do so leaves it empty.
-- Blobs of older versions, and those of cases, are held by nobody: they stay.
CREATE TABLE blob_holder (
    digest TEXT NOT NULL, run INTEGER NOT NULL,
    PRIMARY KEY (digest, run)
) WITHOUT ROWID;
