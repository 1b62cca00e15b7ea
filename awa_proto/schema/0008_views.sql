-- What becomes of jobs, for people who ask in SQL: `jobs` and `terminal_jobs`. By id they cost what get_job costs; without an
-- id the fate of every job is looked up.

-- What became of a row of `ready`: the claim that took it and the closure of its attempt, NULLs where there is none. A function,
-- so that a query over the views is planned in no time and never compiled for what it might cost.
CREATE FUNCTION {schema}.fate(seg smallint, queue text, priority smallint, stripe smallint, xid xid8, id bigint)
RETURNS TABLE (claim_id bigint, lease bigint, claimed_at timestamptz, deadline_at timestamptz, outcome smallint,
               closed_at timestamptz, output json)
LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
  RETURN QUERY
  SELECT t.claim_id, t.lease, t.claimed_at, t.deadline_at, k.outcome, k.closed_at, k.output
  FROM (SELECT $1 AS seg, $2 COLLATE "C" AS queue, $3 AS priority, $4 AS stripe, $5 AS xid, $6 AS id) r
  LEFT JOIN LATERAL (   -- the claim that took the row: the first turn of its lane whose cursor covers it, by halving
    WITH RECURSIVE search(lo, hi) AS (
      SELECT 0::bigint, top.turn
      FROM (SELECT c.* FROM {schema}.claims c
            WHERE c.seg = r.seg AND c.queue = r.queue AND c.priority = r.priority AND c.stripe = r.stripe
            ORDER BY c.queue, c.priority, c.stripe, c.turn DESC LIMIT 1) top
      WHERE pg_visible_in_snapshot(r.xid, coalesce(top.seen, top.upto))
         OR (top.seen IS NOT NULL AND pg_visible_in_snapshot(r.xid, top.upto) AND (r.xid, r.id) <= (top.pos_xid, top.pos_id))
      UNION ALL
      SELECT CASE WHEN m.claimed THEN s.lo ELSE m.turn END, CASE WHEN m.claimed THEN m.turn ELSE s.hi END
      FROM search s CROSS JOIN LATERAL (
        SELECT c.turn, pg_visible_in_snapshot(r.xid, coalesce(c.seen, c.upto))
               OR (c.seen IS NOT NULL AND pg_visible_in_snapshot(r.xid, c.upto)
                   AND (r.xid, r.id) <= (c.pos_xid, c.pos_id)) AS claimed
        FROM {schema}.claims c
        WHERE c.seg = r.seg AND c.queue = r.queue AND c.priority = r.priority AND c.stripe = r.stripe
          AND c.turn = (s.lo + s.hi) / 2
        ORDER BY c.queue, c.priority, c.stripe, c.turn LIMIT 1) m
      WHERE s.hi - s.lo > 1
    )
    SELECT c.claim_id, c.lease, c.claimed_at, c.deadline_at, (array_position(c.job_ids, r.id) - 1)::smallint AS idx
    FROM search s CROSS JOIN LATERAL (
      SELECT c.* FROM {schema}.claims c
      WHERE c.seg = r.seg AND c.queue = r.queue AND c.priority = r.priority AND c.stripe = r.stripe AND c.turn = s.hi
      ORDER BY c.queue, c.priority, c.stripe, c.turn LIMIT 1) c
    WHERE s.hi - s.lo = 1
  ) t ON true
  LEFT JOIN LATERAL (
    SELECT k.outcome, k.closed_at, k.outputs -> (array_position(k.idx, t.idx) - 1) AS output FROM {schema}.closures k
    WHERE k.seg = r.seg AND k.claim_id = t.claim_id AND t.idx = ANY (k.idx) AND k.n >= 0 AND k.n <= 32767
    ORDER BY k.claim_id, k.n LIMIT 1
  ) k ON true;
END
$$;

-- Every job once, wherever it is. Whoever adds a table of jobs replaces this one, and the two others have it too.
-- (The range of run_lease holds always: in a log, which is never analysed, the planner takes an id for thousands of rows, and a
-- range for few of those.)
CREATE VIEW {schema}.job_rows AS
SELECT r.id, r.kind, r.queue, r.args, r.state::int AS state, r.priority, r.attempt::int AS attempt, r.run_lease, r.max_attempts,
       r.run_at, r.created_at, r.attempted_at, NULL::timestamptz AS deadline_at, r.finalized_at, r.extra,
       NULL::json AS progress, NULL::json AS output, NULL::text COLLATE "C" AS dlq_reason, NULL::timestamptz AS dlq_at
FROM {schema}.deferred r
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, r.state, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, NULL, r.finalized_at, r.extra, NULL, NULL, NULL, NULL
FROM {schema}.failed r
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, r.state, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, NULL, r.finalized_at, r.extra, NULL, NULL, r.dlq_reason, r.dlq_at
FROM {schema}.dlq r
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, r.state, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, r.deadline_at, r.finalized_at, r.extra, a.progress, NULL, NULL, NULL
FROM {schema}.jobs_hot r
LEFT JOIN {schema}.attempts a ON r.state = 2 AND a.job_id = r.id AND a.run_lease = r.run_lease
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, r.state, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, NULL, r.finalized_at, r.extra, NULL, NULL, NULL, NULL
FROM {schema}.scheduled_jobs r
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, CASE WHEN f.claim_id IS NULL THEN 1 WHEN f.outcome IS NULL THEN 2 ELSE 3 END, r.priority,
       r.attempt + (f.claim_id IS NOT NULL)::int, coalesce(f.lease, r.run_lease), r.max_attempts, r.run_at, r.created_at,
       f.claimed_at,
       CASE WHEN f.outcome IS NULL
         THEN coalesce(f.claimed_at + (r.extra->>'deadline')::float8 * interval '1 s', f.deadline_at) END,
       f.closed_at, r.extra, a.progress, nullif(f.output::text, 'null')::json, NULL, NULL
FROM {schema}.ready r
CROSS JOIN LATERAL {schema}.fate(r.seg, r.queue, r.priority, r.stripe, r.xid, r.id) f
LEFT JOIN {schema}.attempts a ON f.outcome IS NULL AND a.job_id = r.id AND a.run_lease = f.lease
WHERE CASE WHEN f.outcome IS NULL THEN true ELSE f.outcome = 3 END   -- else it has put the job elsewhere
  AND CASE WHEN EXISTS (SELECT FROM {schema}.deleted x WHERE x.id = r.id) THEN false ELSE true END
  AND r.run_lease >= 0 AND r.run_lease <= 9223372036854775807;

CREATE VIEW {schema}.jobs AS
SELECT id, kind, queue, args,
       (ARRAY['scheduled', 'available', 'running', 'completed', 'retryable', 'failed', 'cancelled', 'waiting_external'])[state + 1]
         AS state,
       priority, attempt, max_attempts, run_lease, run_at, created_at, attempted_at, deadline_at, finalized_at,
       coalesce(extra->'errors', '[]') AS errors, coalesce(extra->'metadata', '{}') AS metadata,
       ARRAY(SELECT json_array_elements_text(extra->'tags')) AS tags,
       CASE WHEN state <> 3 THEN coalesce(progress, extra->'progress') END AS progress, dlq_reason, dlq_at
FROM {schema}.job_rows;

-- Completed, failed and cancelled jobs, dead letters among them, with what completed ones recorded, character for character.
CREATE VIEW {schema}.terminal_jobs AS
SELECT id, kind, queue, args, CASE state WHEN 3 THEN 'completed' WHEN 5 THEN 'failed' ELSE 'cancelled' END AS state,
       output, priority, attempt, max_attempts, run_lease, run_at, created_at, attempted_at, finalized_at,
       coalesce(extra->'errors', '[]') AS errors, coalesce(extra->'metadata', '{}') AS metadata,
       ARRAY(SELECT json_array_elements_text(extra->'tags')) AS tags, dlq_reason, dlq_at
FROM {schema}.job_rows WHERE state IN (3, 5, 6);
