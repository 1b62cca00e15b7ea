-- Unique jobs: which job has a key, and in which of its states that keeps others out.
--
-- Nothing is written here at a claim or a completion. Whether a key is taken is asked when somebody wants it, by looking up
-- the present state of the job that has it; so a key is free as soon as its job leaves those states, whatever way.

CREATE TABLE {schema}.unique_keys (
  key bytea PRIMARY KEY,
  job_id bigint NOT NULL,                        -- the newest job that got it; it may be gone
  states smallint NOT NULL                       -- bit i for the i-th of JobState
);

-- The present state of a job by its place in JobState, NULL when it is gone. Whoever adds a table of jobs replaces it.
-- VOLATILE, so that under READ COMMITTED each query sees what is there now, also when the calling statement has waited for a
-- lock, and what that one has written.
CREATE FUNCTION {schema}.job_state(job bigint) RETURNS smallint LANGUAGE plpgsql VOLATILE
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

-- Whether the job that has a key keeps others out: it is in one of the states. A job that is gone does not.
CREATE FUNCTION {schema}.unique_blocks(job bigint, states smallint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN coalesce(states >> {schema}.job_state(job) & 1 = 1, false);
END
$$;

-- Who has a key now, seen after whatever the calling statement waited for.
CREATE FUNCTION {schema}.unique_holder(wanted bytea) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN (SELECT u.job_id FROM {schema}.unique_keys u WHERE u.key = wanted);
END
$$;
