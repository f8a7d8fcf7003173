-- What the role `forgelet.serving_role` needs to serve what it does not own. It adds to the audit trail and reads it;
-- no statement of the service, whatever is wrong with it, changes or removes an event. It can be run again.
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
            -- The owner's trigger adds to the chain; migrations are the owner's too.
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
