-- Grant the role `forgelet.serving_role` the rights that it needs to serve without owning a table. It can only read the
-- audit trail and add events, so that no statement of the service changes or removes an event, not even a wrong one.
-- This file can be run again.
DO $$
DECLARE
    serving name := current_setting('forgelet.serving_role');
    one record;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), serving);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', current_schema(), serving);
    FOR one IN
        SELECT pg_class.oid::regclass AS name, CASE
            WHEN relkind = 'S' THEN 'USAGE, SELECT'
            WHEN relname = 'audit_events' THEN 'SELECT, INSERT'
            -- A trigger with its owner's rights adds to the chain, and only the owner applies migrations.
            WHEN relname LIKE ANY ('{audit\\_%,%yoyo\\_%}') THEN 'SELECT'
            ELSE 'SELECT, INSERT, UPDATE, DELETE' END AS privileges
        FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'S')
            AND NOT relispartition AND pg_has_role(relowner, 'USAGE')
    LOOP
        EXECUTE format('GRANT %s ON %s TO %I', one.privileges, one.name, serving);
    END LOOP;
    EXECUTE format('GRANT EXECUTE ON FUNCTION make_audit_partitions(timestamptz, integer) TO %I', serving);
END $$;
