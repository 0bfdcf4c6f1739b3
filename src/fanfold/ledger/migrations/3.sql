ALTER TABLE trial ADD COLUMN origin TEXT;                       -- parents and the like, as the strategy says (JSON)
CREATE TABLE summary (run INTEGER PRIMARY KEY, text TEXT NOT NULL);         -- what its study concluded (JSON)
