"""The longer statements of `RunView`.  Each finds its rows by the run, so that it never meets those of others."""

ORDERS = {"number": "number", "told": "told IS NULL, told", "best": "score DESC, told IS NULL, told, number"}
#: The same as keys that no NULL is part of, by which pages are found.
KEYS = {
    "number": "(number, number, number)",
    "told": "(coalesce(told, 9e18), number, number)",
    "best": "(CASE typeof(score) WHEN 'real' THEN -score ELSE 1.7e308 END, coalesce(told, 9e18), number)",
}
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
#: When the evaluation of the last case of some trials ended.
ENDS = """
    SELECT value, (SELECT started + seconds FROM evaluation WHERE run = ?1 AND trial = value
        ORDER BY position DESC LIMIT 1) FROM json_each(?2)
"""
EVALUATIONS = """
    SELECT trial, position, score, CAST(failure AS BLOB), CAST(message AS BLOB), CAST(detail AS BLOB), cost, started,
        seconds, tries, reused, CAST(data AS BLOB)
    FROM evaluation WHERE run = ?
"""
#: The cells of a list of pairs (JSON).
AMONG = "(trial, position) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))"
#: Trials alone: a told trial knows how many evaluations it had and what they cost.  Cells are met only of open ones.
#: The cost is that of model calls where that is more: evaluations that a kill cut off have none, and theirs are paid.
COUNTS = """
    SELECT coalesce(sum(evaluations), 0) * EXISTS (SELECT 1 FROM evaluation WHERE run = ?1) + open.cells AS evaluations,
        (SELECT count(*) FROM evaluation WHERE run = ?1 AND failure IS NOT NULL) AS failures,
        max(total(CASE WHEN told IS NOT NULL THEN t.cost END) + open.paid,
            (SELECT total(cost) FROM payment WHERE run = ?1)) AS cost, count(told) AS trials,
        max(CASE WHEN told IS NOT NULL AND dropped IS NULL AND typeof(score) = 'real' THEN score END) AS best
    FROM (SELECT count(*) AS cells, total(cost) AS paid FROM evaluation WHERE run = ?1 AND trial IN (
        SELECT number FROM trial WHERE run = ?1 AND told IS NULL)) AS open LEFT JOIN trial t ON run = ?1
"""
#: The same of a run that has ended, as it was counted then.
COUNTED = "SELECT evaluations, failures, cost, trials, best FROM run_count WHERE run = ?"
UNPRICED = "SELECT count(*) FROM payment WHERE run = ? AND cost IS NULL"
PROGRESS = """
    SELECT count(number), count(told), coalesce(sum(CASE WHEN told IS NOT NULL THEN evaluations END), 0),
        coalesce(sum(told IS NOT NULL AND instr(origin, '"written":true') > 0), 0),
        (SELECT count(*) FROM evaluation INDEXED BY evaluation_failed
            WHERE run = ?1 AND failure IS NOT NULL AND failure = 'unwritten' AND EXISTS (
            SELECT 1 FROM trial WHERE run = ?1 AND number = evaluation.trial AND told IS NOT NULL)),
        (SELECT count(*) FROM run_case WHERE run = ?1),
        (SELECT count(*) FROM evaluation INDEXED BY evaluation_reused WHERE run = ?1 AND reused = 1),
        (SELECT told FROM trial WHERE run = ?1 AND told IS NOT NULL AND dropped IS NULL AND typeof(score) = 'real'
            ORDER BY score DESC, told LIMIT 1)
    FROM trial WHERE run = ?1
"""
# SQLite takes the other columns from the row that has the smallest trial.
FAILURES = """
    SELECT CAST(failure AS BLOB), count(*), min(trial), position, CAST(message AS BLOB)
    FROM evaluation INDEXED BY evaluation_failed WHERE run = ? AND failure IS NOT NULL
    GROUP BY failure ORDER BY count(*) DESC, failure
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
FAILED_PAGE = """
    SELECT trial, position, CAST(failure AS BLOB), CAST(substr(message, 1, 500) AS BLOB), started + seconds
    FROM evaluation INDEXED BY evaluation_failed WHERE run = ? AND failure IS NOT NULL AND (trial, position) > (?, ?)
    ORDER BY trial, position LIMIT ?
"""
TOOK = """
    SELECT started, seconds, trial, position, failure IS NOT NULL, tries FROM evaluation
    WHERE run = ? AND reused = 0 AND started < 4e11 AND seconds < 1e11
"""
SIZE = """
    SELECT coalesce(sum(evaluations), 0) + (SELECT count(*) FROM evaluation WHERE run = ?1 AND trial IN (
        SELECT number FROM trial WHERE run = ?1 AND told IS NULL)), count(*)
    FROM trial WHERE run = ?1
"""
PAID_BY_TIME = """
    SELECT CAST((at + seconds - ?) / ? AS INTEGER), count(*), total(cost) FROM payment WHERE run = ? GROUP BY 1
"""
CALLED = """
    SELECT keys, cached, e.started + e.seconds FROM cell_call LEFT JOIN evaluation e USING (run, trial, position)
    WHERE run = ? AND trial = ? AND position = ?
"""
CALLED_FOR_ANOTHER = """
    SELECT c.keys, c.cached, o.started + o.seconds FROM evaluation e
    JOIN evaluation o ON o.key = e.key AND o.failure IS NULL AND o.reused = 0
    JOIN cell_call c ON c.run = o.run AND c.trial = o.trial AND c.position = o.position
    WHERE e.run = ? AND e.trial = ? AND e.position = ? AND e.reused = 1 LIMIT 1
"""
CALL = """
    SELECT model, request, reply, input_tokens, output_tokens, cost, started, seconds, tries, batch FROM call
    WHERE key = ?
"""
