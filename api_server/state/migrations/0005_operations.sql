-- What operators see: the audit trail, failures of parts that have no state of their own, and figures over time.

-- Audit events are never changed. The application's clock dates them and decides which months have a partition.
CREATE SEQUENCE audit_events_id_seq;

CREATE TABLE audit_events (
    id bigint NOT NULL DEFAULT nextval('audit_events_id_seq'),
    -- When it was recorded, as exact as the API shows it, so that what is shown can be filtered by.
    created_at timestamptz(3) NOT NULL,
    author_id bigint NOT NULL,
    author_name text NOT NULL,
    entity_type text NOT NULL,
    entity_id bigint NOT NULL,
    entity_path text NOT NULL,
    event_type text NOT NULL,
    target_type text NOT NULL,
    target_id bigint,
    target_details text NOT NULL,
    ip_address text,
    details jsonb NOT NULL,
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);
-- Lists are in the order of created_at and id: partitions are read one after the other, from the newest on.
CREATE INDEX audit_events_created ON audit_events (created_at, id);
CREATE INDEX audit_events_entity ON audit_events (entity_type, entity_id, created_at, id);
CREATE INDEX audit_events_author ON audit_events (author_id, created_at, id);
CREATE INDEX audit_events_type ON audit_events (event_type, created_at, id);
CREATE INDEX audit_events_target ON audit_events (target_type, target_id, created_at, id);

-- One row for each event, in the order of commits; it stays when the events of old months are removed.
CREATE TABLE audit_chain (
    position bigint PRIMARY KEY,
    event_id bigint NOT NULL,
    created_at timestamptz(3) NOT NULL,
    digest bytea NOT NULL, -- SHA-256 of the event's line
    hash bytea NOT NULL -- SHA-256 of the hash before it, digest, position, event_id, created_at (milliseconds)
);
CREATE UNIQUE INDEX audit_chain_event ON audit_chain (event_id);

-- An event as it is digested and exported. Changing this breaks the chain of every event that exists.
-- (plpgsql keeps the plan of this for the session; SQL would plan it anew for each event.)
CREATE FUNCTION audit_event_line(e audit_events) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN json_build_object(
        'id', (e).id,
        'created_at', to_char((e).created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'author_id', (e).author_id,
        'author_name', (e).author_name,
        'entity_type', (e).entity_type,
        'entity_id', (e).entity_id,
        'entity_path', (e).entity_path,
        'event_type', (e).event_type,
        'target_type', (e).target_type,
        'target_id', (e).target_id,
        'target_details', (e).target_details,
        'ip_address', (e).ip_address,
        'details', (e).details
    )::text;
END $$;

-- Runs when the transaction commits, and is the last thing that it does: the lock is held for that moment only, and no
-- other lock is waited for under it.
CREATE FUNCTION chain_audit_event() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    last audit_chain;
    digest bytea := sha256(convert_to(audit_event_line(NEW), 'UTF8'));
    next bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(4243);
    SELECT * INTO last FROM audit_chain ORDER BY position DESC LIMIT 1;
    next := coalesce(last.position, 0) + 1;
    INSERT INTO audit_chain (position, event_id, created_at, digest, hash)
    VALUES (next, NEW.id, NEW.created_at, digest, sha256(
        coalesce(last.hash, decode(repeat('00', 32), 'hex')) || digest || int8send(next) || int8send(NEW.id)
        || int8send((extract(epoch FROM NEW.created_at) * 1000)::bigint)));
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER chain AFTER INSERT ON audit_events
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION chain_audit_event();

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: audit events are only ever added', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_events FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_all BEFORE TRUNCATE ON audit_events EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_chain FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_all BEFORE TRUNCATE ON audit_chain EXECUTE FUNCTION refuse_change();

-- What an event gets that is recorded now, `moment` being the application's: not less than the event before it has, so
-- that events ascend by id and by moment alike, whatever transaction began first. A clock that was set back by more
-- than an hour counts as it is. From here on its transaction has the chain's lock, so it must do nothing else but end.
CREATE FUNCTION audit_moment(moment timestamptz) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    last timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(4243);
    SELECT created_at INTO last FROM audit_chain ORDER BY position DESC LIMIT 1;
    RETURN CASE WHEN last BETWEEN moment AND moment + interval '1 hour' THEN last
        ELSE date_trunc('milliseconds', moment) END;
END $$;

-- Makes `name` the partition of [since, until). Statement triggers are not inherited, so it gets its own.
CREATE FUNCTION make_audit_partition(name text, since timestamptz, until timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass(name) IS NULL THEN
        EXECUTE format('CREATE TABLE %I (LIKE audit_events INCLUDING DEFAULTS)', name);
        EXECUTE format(
            'CREATE TRIGGER append_only_all BEFORE TRUNCATE ON %I EXECUTE FUNCTION refuse_change()', name);
    END IF;
    EXECUTE format('ALTER TABLE audit_events ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', name,
        coalesce(quote_literal(since), 'MINVALUE'), coalesce(quote_literal(until), 'MAXVALUE'));
END $$;

-- Makes a partition for each month from that of `moment` up to `ahead` months later and gives how many it made. Months
-- before it that have none get one together. What comes later goes to audit_events_future, so that no event is ever
-- refused; if events are there already, it becomes the partition of all the months that they are of.
CREATE FUNCTION make_audit_partitions(moment timestamptz, ahead integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    present timestamp := date_trunc('month', moment AT TIME ZONE 'UTC');
    month timestamp;
    until timestamp;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(4244);
    -- Where audit_events_future begins the months end that there are.
    SELECT substring(pg_get_expr(relpartbound, oid) FROM 'FROM \(''([^'']+)''\)')::timestamptz AT TIME ZONE 'UTC'
    INTO month FROM pg_class WHERE oid = 'audit_events_future'::regclass;
    IF month > present + make_interval(months => ahead) THEN
        RETURN 0;
    END IF;
    ALTER TABLE audit_events DETACH PARTITION audit_events_future;
    SELECT date_trunc('month', max(created_at) AT TIME ZONE 'UTC') + interval '1 month' INTO until
    FROM audit_events_future;
    IF until IS NOT NULL THEN
        EXECUTE format('ALTER TABLE audit_events_future RENAME TO %I',
            'audit_events_' || to_char(until - interval '1 month', 'YYYY_MM'));
        PERFORM make_audit_partition('audit_events_' || to_char(until - interval '1 month', 'YYYY_MM'),
            month AT TIME ZONE 'UTC', until AT TIME ZONE 'UTC');
        month := until;
        made := 1;
    END IF;
    WHILE month <= present + make_interval(months => ahead) LOOP
        until := greatest(month + interval '1 month', present);
        PERFORM make_audit_partition('audit_events_' || to_char(until - interval '1 month', 'YYYY_MM'),
            month AT TIME ZONE 'UTC', until AT TIME ZONE 'UTC');
        month := until;
        made := made + 1;
    END LOOP;
    PERFORM make_audit_partition('audit_events_future', month AT TIME ZONE 'UTC', NULL);
    RETURN made;
END $$;

-- audit_events_past is for what is older than the database, should a clock be wrong.
DO $$
DECLARE
    month timestamptz := date_trunc('month', now(), 'UTC');
BEGIN
    PERFORM make_audit_partition('audit_events_past', NULL, month);
    PERFORM make_audit_partition('audit_events_future', month, NULL);
    PERFORM make_audit_partitions(now(), 3);
END $$;

-- The chain and the partitions are their owner's work, so that a role that owns nothing can serve.
-- Their names are looked up in this schema: who calls them has no say in that.
DO $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY '{chain_audit_event(), "make_audit_partitions(timestamptz, integer)"}'::text[] LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', one, current_schema());
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION make_audit_partitions(timestamptz, integer) FROM PUBLIC;

-- What failed last, for as long as it does; whoever succeeds takes it away.
CREATE TABLE operations_failures (
    part text NOT NULL, -- mail, store, disk, edge, background, task
    subject text NOT NULL, -- which: a host, a folder, a URL, the id of a task
    source text NOT NULL, -- the process that it fails for; empty: for all
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    times bigint NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (part, subject, source)
);

CREATE TABLE operations_samples (
    name text NOT NULL,
    at timestamptz NOT NULL,
    value double precision NOT NULL,
    PRIMARY KEY (name, at)
);
CREATE INDEX operations_samples_at ON operations_samples (at); -- what is old enough to go

-- Lists and figures of the queue, whose own tables are made before these migrations.
CREATE INDEX procrastinate_jobs_failed ON procrastinate_jobs (task_name, id) WHERE status = 'failed';
CREATE INDEX procrastinate_jobs_waiting ON procrastinate_jobs (task_name, id) INCLUDE (scheduled_at)
    WHERE status = 'todo';
CREATE INDEX procrastinate_jobs_not_waiting ON procrastinate_jobs (status, id) WHERE status <> 'todo';
