-- The application's clock dates audit events and decides which months have a partition.
-- depends: 0050_audit_trail

ALTER TABLE audit_events ALTER created_at DROP DEFAULT;

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

-- Makes a partition for each month from that of `moment` up to `ahead` months later and gives how many it made. Months
-- before it that have none get one together. What comes later goes to audit_events_future, so that no event is ever
-- refused; if events are there already, it becomes the partition of all the months that they are of.
DROP FUNCTION make_audit_partitions(integer);
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
