-- The chain and the partitions are their owner's work, so that a role that owns nothing can serve.
-- depends: 0053_audit_clock

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
