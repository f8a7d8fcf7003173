-- CI/CD variables of the whole instance.
-- depends: 0021_ci_variables

-- The instance is 1, as in the audit trail.
ALTER TABLE ci_variables ADD instance_id bigint CHECK (instance_id = 1);
ALTER TABLE ci_variables DROP CONSTRAINT ci_variables_check,
    ADD CONSTRAINT ci_variables_check CHECK (num_nonnulls(project_id, namespace_id, instance_id) = 1);
CREATE UNIQUE INDEX ci_variables_instance ON ci_variables (instance_id, key) WHERE instance_id IS NOT NULL;
