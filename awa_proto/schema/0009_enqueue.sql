-- Enqueue from SQL: from triggers, from psql, from any language. `SELECT {schema}.enqueue('send_email', '{"to": "a@b.c"}')` gives
-- the id. The job exists if and only if the transaction commits; what an insert of a client refuses is refused here, by an
-- exception that names the argument. Not here: unique keys.
CREATE FUNCTION {schema}.enqueue(
  kind text,
  args jsonb DEFAULT '{}',
  queue text DEFAULT 'default',
  priority int DEFAULT 2,
  run_at timestamptz DEFAULT NULL,       -- when it is due; NULL is now
  max_attempts int DEFAULT 25,
  metadata jsonb DEFAULT NULL,
  tags text[] DEFAULT NULL,
  ordering_key text DEFAULT NULL,        -- jobs of one key go to one stripe of a striped queue
  deadline interval DEFAULT NULL,        -- how long an attempt may run
  notify boolean DEFAULT true            -- false lets sleeping workers find the job by polling
) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  problem text;
  due timestamptz := coalesce(run_at, now());
  number bigint;
  own_stripe smallint;
  extra text;
  job bigint;
BEGIN
  kind := coalesce(kind, '');
  args := coalesce(args, '{}');
  queue := coalesce(queue, 'default');
  priority := coalesce(priority, 2);
  max_attempts := coalesce(max_attempts, 25);
  problem := CASE
    WHEN char_length(kind) NOT BETWEEN 1 AND 200 THEN 'kind: has ' || char_length(kind) || ' characters; 1 to 200 are allowed'
    WHEN char_length(queue) NOT BETWEEN 1 AND 200 THEN 'queue: has ' || char_length(queue) || ' characters; 1 to 200 are allowed'
    WHEN priority NOT BETWEEN 1 AND 4 THEN 'priority: ' || priority || ' is outside 1 … 4'
    WHEN max_attempts NOT BETWEEN 1 AND 1000 THEN 'max_attempts: ' || max_attempts || ' is outside 1 … 1000'
    WHEN jsonb_typeof(args) <> 'object' THEN 'args: an object is needed, not ' || jsonb_typeof(args)
    WHEN jsonb_typeof(metadata) <> 'object' THEN 'metadata: an object is needed, not ' || jsonb_typeof(metadata)
    WHEN octet_length(metadata::text) > 65536 THEN
      'metadata: has ' || octet_length(metadata::text) || ' bytes of JSON; 65536 are allowed'
    WHEN EXISTS (SELECT FROM jsonb_object_keys(metadata) key
                 WHERE (starts_with(key, 'awa:') OR starts_with(key, '_awa_')) AND key <> 'awa:traceparent') THEN
      'metadata: keys may not begin with awa: or _awa_, which are reserved'
    WHEN cardinality(tags) > 20 THEN 'tags: has ' || cardinality(tags) || ' tags; 20 are allowed'
    WHEN array_ndims(tags) > 1 THEN 'tags: a list of text is needed'
    WHEN array_position(tags, NULL) IS NOT NULL THEN 'tags: NULL is none'
    WHEN due <= '0001-01-01 00:00:00+00' OR due >= '9999-12-31 23:59:59.999999+00' THEN
      'run_at: ' || due || ' is outside the years 1 … 9999'
    WHEN deadline <= interval '0' OR extract(epoch FROM deadline) > 100 * 365.25 * 86400 THEN
      'deadline: ' || deadline || ' is outside 0 … 100 years'
  END;
  IF problem IS NOT NULL THEN
    RAISE EXCEPTION USING MESSAGE = problem, ERRCODE = 'invalid_parameter_value';
  END IF;

  extra := concat_ws(',',
    CASE WHEN metadata <> '{}' THEN '"metadata":' || metadata::text END,
    CASE WHEN cardinality(tags) > 0 THEN '"tags":' || array_to_json(tags)::text END,
    CASE WHEN deadline IS NOT NULL THEN '"deadline":' || extract(epoch FROM deadline)::float8 END);
  extra := CASE WHEN extra <> '' THEN '{' || extra || '}' END;
  -- an ordering key is the first 63 bits of its SHA-256, in every language
  number := CASE WHEN ordering_key IS NULL THEN (random() * 4611686018427387904)::bigint
    ELSE (('x' || substr(encode(sha256(convert_to(ordering_key, 'UTF8')), 'hex'), 1, 16))::bit(64) >> 1)::bigint END;
  own_stripe := coalesce((SELECT mod(number, q.stripes) FROM {schema}.queues q WHERE q.queue = enqueue.queue COLLATE "C"), 0);

  IF due <= now() THEN
    INSERT INTO {schema}.ready (seg, queue, priority, stripe, kind, args, max_attempts, extra, run_at)
    VALUES ((pg_sequence_last_value('{schema_text}.ring'::regclass) & 255)::smallint, queue, priority, own_stripe, kind,
            args::text::json, max_attempts, extra::json, due)
    RETURNING id INTO job;
  ELSE
    INSERT INTO {schema}.deferred (state, queue, priority, stripe, kind, args, attempt, max_attempts, run_lease, run_at,
                                   created_at, extra)
    VALUES (0, queue, priority, own_stripe, kind, args::text::json, 0, max_attempts, 0, due, now(), extra::json)
    RETURNING id INTO job;
  END IF;

  -- as a client's insert does: whoever sleeps holds the lock in share mode; a job due in five seconds is only hinted at
  IF notify AND due < now() + interval '5 s' THEN
    IF pg_try_advisory_lock(hashtextextended(queue, {asleep})) THEN
      PERFORM pg_advisory_unlock(hashtextextended(queue, {asleep}));
    ELSE
      PERFORM pg_notify('{channel_text}', CASE WHEN due <= now() THEN queue ELSE '' END);
    END IF;
  END IF;
  RETURN job;
END
$$;
