"""The longer statements of `RunView`.  Each finds its rows by the run, so that it never meets those of others."""

ORDERS = {"number": "number", "told": "told IS NULL, told", "best": "score DESC, told"}
FAILED = "SELECT 1 FROM evaluation e WHERE e.run = t.run AND e.trial = t.number AND e.failure IS NOT NULL"
WHICH = {
    "all": "1",
    "told": "told IS NOT NULL",
    "open": "told IS NULL",
    "complete": "told IS NOT NULL AND dropped IS NULL AND typeof(score) = 'real'",
    "dropped": "dropped IS NOT NULL",
    "failed": f"EXISTS ({FAILED})",
}
NUMBERS = "SELECT number FROM trial t WHERE run = ? AND"
TRIALS = f"""
    SELECT number, told, score, CAST(dropped AS BLOB), cost, evaluations, (SELECT count(*) FROM ({FAILED})), candidate,
        origin
    FROM trial t WHERE run = ? AND number IN (SELECT value FROM json_each(?))
"""
EVALUATIONS = """
    SELECT trial, position, score, CAST(failure AS BLOB), CAST(message AS BLOB), CAST(detail AS BLOB), cost, started,
        seconds, tries, reused, CAST(data AS BLOB)
    FROM evaluation WHERE run = ?
"""
PROGRESS = """
    SELECT count(number), count(told), coalesce(sum(CASE WHEN told IS NOT NULL THEN evaluations END), 0),
        coalesce(sum(told IS NOT NULL AND instr(origin, '"written":true') > 0), 0), cells.unwritten,
        (SELECT count(*) FROM run_case WHERE run = ?1), cells.reused,
        (SELECT told FROM trial WHERE run = ?1 AND told IS NOT NULL AND dropped IS NULL AND typeof(score) = 'real'
            ORDER BY score DESC, told LIMIT 1)
    FROM (SELECT coalesce(sum(reused), 0) AS reused, coalesce(sum(failure = 'unwritten' AND EXISTS (
            SELECT 1 FROM trial WHERE run = ?1 AND number = evaluation.trial AND told IS NOT NULL)), 0) AS unwritten
        FROM evaluation WHERE run = ?1) AS cells LEFT JOIN trial ON run = ?1
"""
# SQLite takes the other columns from the row that has the smallest trial.
FAILURES = """
    SELECT CAST(failure AS BLOB), count(*), min(trial), position, CAST(message AS BLOB) FROM evaluation
    WHERE run = ? AND failure IS NOT NULL GROUP BY failure ORDER BY count(*) DESC, failure
"""
MODELS = """
    SELECT model, count(*), count(batch), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), sum(cost),
        count(*) - count(cost), sum(max(tries - 1, 0)), total(CASE WHEN batch IS NULL THEN seconds END)
    FROM payment WHERE run = ? GROUP BY model ORDER BY model
"""
WAVES = """
    SELECT b.tag, b.model, b.state, b.requests, b.created, count(p.id), max(p.at + p.seconds) - b.created
    FROM batch b LEFT JOIN (SELECT * FROM payment WHERE run = ?1 AND batch IS NOT NULL) p ON p.batch = b.tag
    WHERE b.run = ?1 GROUP BY b.tag ORDER BY b.created, b.tag
"""
