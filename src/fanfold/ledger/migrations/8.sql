-- The last told trial of a run is found at once: processes that share a run number what they tell by it.
CREATE INDEX trial_told ON trial (run, told) WHERE told IS NOT NULL;
