-- Callbacks: jobs that wait for the outside world.

-- The callback of an attempt: one for a job, that of its newest attempt. Whatever ends the attempt takes its row along, so that
-- the token is dead; a row that a race leaves behind belongs to no attempt that could be ended, and is pruned.
CREATE TABLE {schema}.callbacks (
  job_id bigint PRIMARY KEY,
  run_lease bigint NOT NULL,
  callback_id uuid NOT NULL,
  state smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),   -- registered, waited for by the handler, parked, resumed
  seg smallint NOT NULL,                         -- the attempt: -1 of canonical storage
  claim_id bigint NOT NULL,
  idx smallint NOT NULL,
  timeout_at timestamptz NOT NULL,
  waits_since timestamptz,
  waited float8 NOT NULL DEFAULT 0,              -- seconds the handler has waited, which its deadline does not count
  queue text COLLATE "C" NOT NULL,
  expressions text,
  result json                                    -- what it was resumed with
);

CREATE UNIQUE INDEX callbacks_id ON {schema}.callbacks (callback_id);

CREATE INDEX callbacks_due ON {schema}.callbacks (timeout_at, job_id) WHERE state IN (1, 2);

CREATE INDEX callbacks_waited_for ON {schema}.callbacks (job_id) WHERE state = 1;

-- Parked jobs (7), and those of them that were completed from outside (3): no attempt of theirs could, for it had ended.
CREATE TABLE {schema}.waiting (
  id bigint PRIMARY KEY,
  state smallint NOT NULL DEFAULT 7 CHECK (state IN (3, 7)),
  priority smallint NOT NULL,
  stripe smallint NOT NULL,
  attempt smallint NOT NULL,
  max_attempts smallint NOT NULL,
  run_lease bigint NOT NULL,
  run_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  attempted_at timestamptz,
  finalized_at timestamptz,
  queue text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  args json NOT NULL,
  extra json,
  output json
);

CREATE INDEX waiting_completed ON {schema}.waiting (finalized_at, id) WHERE state = 3;

-- The present state of a job of queue storage, with the table of those that wait. A handler that waits runs: it keeps its key.
CREATE OR REPLACE FUNCTION {schema}.queue_job_state(job bigint) RETURNS smallint LANGUAGE plpgsql VOLATILE
  SET plan_cache_mode = force_generic_plan AS $$   -- planning anew for each segment would cost five times what looking does
DECLARE
  known smallint;
  segment smallint;
  prior bigint;
  ended bigint;
BEGIN
  LOOP
    SELECT p.state, p.seg, p.run_lease INTO known, segment, prior
    FROM (
      SELECT d.state, NULL::smallint AS seg, NULL::bigint AS run_lease FROM {schema}.deferred d WHERE d.id = job
      UNION ALL
      SELECT f.state, NULL, NULL FROM {schema}.failed f WHERE f.id = job
      UNION ALL
      SELECT l.state, NULL, NULL FROM {schema}.dlq l WHERE l.id = job
      UNION ALL
      SELECT w.state, NULL, NULL FROM {schema}.waiting w WHERE w.id = job
      UNION ALL
      (SELECT NULL, r.seg, r.run_lease FROM {schema}.ready r WHERE r.id = job ORDER BY r.id DESC, r.run_lease DESC LIMIT 1)
      LIMIT 1) p;
    IF NOT FOUND OR known IS NOT NULL OR prior = ended THEN
      RETURN known;
    END IF;
    -- What became of that row of ready. One segment, so that the tables of the others are not even opened.
    SELECT CASE WHEN t.claim_id IS NULL THEN 1 WHEN k.outcome IS NULL THEN 2 WHEN k.outcome = 3 THEN 3 END INTO known
    FROM {schema}.ready r
    LEFT JOIN LATERAL (   -- the claim that took it: the first turn of its lane whose cursor covers it, by halving
      WITH RECURSIVE search(lo, hi) AS (
        SELECT 0::bigint, top.turn
        FROM (SELECT c.* FROM {schema}.claims c
              WHERE c.seg = segment AND c.queue = r.queue AND c.priority = r.priority AND c.stripe = r.stripe
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
          WHERE c.seg = segment AND c.queue = r.queue AND c.priority = r.priority AND c.stripe = r.stripe
            AND c.turn = (s.lo + s.hi) / 2
          ORDER BY c.queue, c.priority, c.stripe, c.turn LIMIT 1) m
        WHERE s.hi - s.lo > 1
      )
      SELECT c.claim_id, (array_position(c.job_ids, r.id) - 1)::smallint AS idx
      FROM search s CROSS JOIN LATERAL (
        SELECT c.* FROM {schema}.claims c
        WHERE c.seg = segment AND c.queue = r.queue AND c.priority = r.priority AND c.stripe = r.stripe AND c.turn = s.hi
        ORDER BY c.queue, c.priority, c.stripe, c.turn LIMIT 1) c
      WHERE s.hi - s.lo = 1
    ) t ON true
    LEFT JOIN LATERAL (
      SELECT k.outcome FROM {schema}.closures k
      WHERE k.seg = segment AND k.claim_id = t.claim_id AND t.idx = ANY (k.idx) ORDER BY k.claim_id, k.n LIMIT 1
    ) k ON true
    WHERE r.seg = segment AND r.id = job AND r.run_lease = prior ORDER BY r.id, r.run_lease LIMIT 1;
    IF known IS NOT NULL THEN
      RETURN known;
    END IF;
    -- It was closed, or went away: the job is elsewhere, where the next look sees it; or nowhere, if that finds the row again.
    ended := prior;
  END LOOP;
END
$$;

CREATE OR REPLACE VIEW {schema}.job_rows AS
SELECT r.id, r.kind, r.queue, r.args, r.state::int AS state, r.priority, r.attempt::int AS attempt, r.run_lease, r.max_attempts,
       r.run_at, r.created_at, r.attempted_at, NULL::timestamptz AS deadline_at, r.finalized_at, r.extra,
       NULL::json AS progress, NULL::json AS output, NULL::text COLLATE "C" AS dlq_reason, NULL::timestamptz AS dlq_at,
       NULL::uuid AS callback_id, NULL::timestamptz AS callback_timeout_at
FROM {schema}.deferred r
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, r.state, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, NULL, r.finalized_at, r.extra, NULL, NULL, NULL, NULL, NULL, NULL
FROM {schema}.failed r
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, r.state, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, NULL, r.finalized_at, r.extra, NULL, NULL, r.dlq_reason, r.dlq_at, NULL, NULL
FROM {schema}.dlq r
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, r.state, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, NULL, r.finalized_at, r.extra, NULL, r.output, NULL, NULL, c.callback_id, c.timeout_at
FROM {schema}.waiting r
LEFT JOIN {schema}.callbacks c ON r.state = 7 AND c.job_id = r.id AND c.run_lease = r.run_lease
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, CASE WHEN r.state = 2 AND c.state = 1 THEN 7 ELSE r.state END, r.priority, r.attempt,
       r.run_lease, r.max_attempts, r.run_at, r.created_at, r.attempted_at,
       CASE WHEN c.state = 1 THEN NULL ELSE r.deadline_at + coalesce(c.waited, 0) * interval '1 s' END, r.finalized_at, r.extra,
       a.progress, NULL, NULL, NULL, CASE WHEN c.state < 3 THEN c.callback_id END, CASE WHEN c.state < 3 THEN c.timeout_at END
FROM {schema}.jobs_hot r
LEFT JOIN {schema}.attempts a ON r.state = 2 AND a.job_id = r.id AND a.run_lease = r.run_lease
LEFT JOIN {schema}.callbacks c ON r.state IN (2, 7) AND c.job_id = r.id AND c.run_lease = r.run_lease
UNION ALL
SELECT r.id, r.kind, r.queue, r.args, r.state, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, NULL, r.finalized_at, r.extra, NULL, NULL, NULL, NULL, NULL, NULL
FROM {schema}.scheduled_jobs r
UNION ALL
SELECT r.id, r.kind, r.queue, r.args,
       CASE WHEN f.claim_id IS NULL THEN 1 WHEN f.outcome IS NULL THEN CASE WHEN c.state = 1 THEN 7 ELSE 2 END ELSE 3 END, r.priority,
       r.attempt + (f.claim_id IS NOT NULL)::int, coalesce(f.lease, r.run_lease), r.max_attempts, r.run_at, r.created_at,
       f.claimed_at,
       CASE WHEN f.outcome IS NULL AND c.state IS DISTINCT FROM 1
         THEN coalesce(f.claimed_at + (r.extra->>'deadline')::float8 * interval '1 s', f.deadline_at)
              + coalesce(c.waited, 0) * interval '1 s' END,
       f.closed_at, r.extra, a.progress, nullif(f.output::text, 'null')::json, NULL, NULL,
       CASE WHEN c.state < 3 THEN c.callback_id END, CASE WHEN c.state < 3 THEN c.timeout_at END
FROM {schema}.ready r
CROSS JOIN LATERAL {schema}.fate(r.seg, r.queue, r.priority, r.stripe, r.xid, r.id) f
LEFT JOIN {schema}.attempts a ON f.outcome IS NULL AND a.job_id = r.id AND a.run_lease = f.lease
LEFT JOIN {schema}.callbacks c ON f.outcome IS NULL AND c.job_id = r.id AND c.run_lease = f.lease
WHERE CASE WHEN f.outcome IS NULL THEN true ELSE f.outcome = 3 END   -- else it has put the job elsewhere
  AND CASE WHEN EXISTS (SELECT FROM {schema}.deleted x WHERE x.id = r.id) THEN false ELSE true END
  AND r.run_lease >= 0 AND r.run_lease <= 9223372036854775807;

CREATE OR REPLACE VIEW {schema}.jobs AS
SELECT id, kind, queue, args,
       (ARRAY['scheduled', 'available', 'running', 'completed', 'retryable', 'failed', 'cancelled', 'waiting_external'])[state + 1]
         AS state,
       priority, attempt, max_attempts, run_lease, run_at, created_at, attempted_at, deadline_at, finalized_at,
       coalesce(extra->'errors', '[]') AS errors, coalesce(extra->'metadata', '{}') AS metadata,
       ARRAY(SELECT json_array_elements_text(extra->'tags')) AS tags,
       CASE WHEN state <> 3 THEN coalesce(progress, extra->'progress') END AS progress, dlq_reason, dlq_at,
       callback_id, callback_timeout_at
FROM {schema}.job_rows;
