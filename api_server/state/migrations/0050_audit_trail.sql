-- The audit trail: events that are never changed, a partition for each month, and the chain of hashes over them.
-- depends: 0001_accounts_and_projects

CREATE SEQUENCE audit_events_id_seq;

CREATE TABLE audit_events (
    id bigint NOT NULL DEFAULT nextval('audit_events_id_seq'),
    -- When it was recorded, as exact as the API shows it, so that what is shown can be filtered by.
    created_at timestamptz(3) NOT NULL DEFAULT date_trunc('milliseconds', clock_timestamp()),
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

-- Makes a partition for each month up to `ahead` months from now and gives how many it made. What comes later goes to
-- audit_events_future, so that no event is ever refused; if events are there already, it becomes the partition of all
-- the months that they are of.
CREATE FUNCTION make_audit_partitions(ahead integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    month timestamp;
    until timestamp;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(4244);
    SELECT to_date(max(substring(relname FROM '\d{4}_\d{2}$')), 'YYYY_MM') + interval '1 month' INTO month
    FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = 'audit_events'::regclass;
    IF month IS NULL THEN
        month := date_trunc('month', now() AT TIME ZONE 'UTC');
        PERFORM make_audit_partition('audit_events_past', NULL, month AT TIME ZONE 'UTC');
        PERFORM make_audit_partition('audit_events_future', month AT TIME ZONE 'UTC', NULL);
    END IF;
    IF month > (now() AT TIME ZONE 'UTC') + make_interval(months => ahead) THEN
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
    WHILE month <= (now() AT TIME ZONE 'UTC') + make_interval(months => ahead) LOOP
        PERFORM make_audit_partition('audit_events_' || to_char(month, 'YYYY_MM'),
            month AT TIME ZONE 'UTC', (month + interval '1 month') AT TIME ZONE 'UTC');
        month := month + interval '1 month';
        made := made + 1;
    END LOOP;
    PERFORM make_audit_partition('audit_events_future', month AT TIME ZONE 'UTC', NULL);
    RETURN made;
END $$;

DO $$ BEGIN PERFORM make_audit_partitions(3); END $$;
