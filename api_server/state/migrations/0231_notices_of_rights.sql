-- depends: 0220_operations
-- Whoever changes what processes remember of rights and settings tells all of them when he commits, whichever program
-- he is. A notice says nothing but that, so a transaction sends one, however many rows it changes; and it is sent for
-- columns that are remembered only, since commits with notices wait for each other.
CREATE FUNCTION tell_of_rights() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('rights_changed', '');
    RETURN NULL;
END $$;

CREATE TRIGGER tell_of_rights AFTER UPDATE ON users FOR EACH ROW
    WHEN ((OLD.username, OLD.name, OLD.email, OLD.admin, OLD.state, OLD.external)
        IS DISTINCT FROM (NEW.username, NEW.name, NEW.email, NEW.admin, NEW.state, NEW.external))
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_removal AFTER DELETE ON users FOR EACH ROW EXECUTE FUNCTION tell_of_rights();

CREATE TRIGGER tell_of_rights AFTER UPDATE ON personal_access_tokens FOR EACH ROW
    WHEN ((OLD.user_id, OLD.digest, OLD.scopes, OLD.revoked, OLD.expires_at)
        IS DISTINCT FROM (NEW.user_id, NEW.digest, NEW.scopes, NEW.revoked, NEW.expires_at))
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_removal AFTER DELETE ON personal_access_tokens FOR EACH ROW EXECUTE FUNCTION tell_of_rights();

CREATE TRIGGER tell_of_rights AFTER UPDATE ON namespaces FOR EACH ROW
    WHEN ((OLD.owner_id, OLD.parent_id, OLD.lineage, OLD.visibility)
        IS DISTINCT FROM (NEW.owner_id, NEW.parent_id, NEW.lineage, NEW.visibility))
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_removal AFTER DELETE ON namespaces FOR EACH ROW EXECUTE FUNCTION tell_of_rights();

CREATE TRIGGER tell_of_rights AFTER UPDATE ON projects FOR EACH ROW
    WHEN ((OLD.namespace_id, OLD.path, OLD.full_path, OLD.visibility, OLD.default_branch, OLD.archived,
            OLD.public_jobs, OLD.repository_access_level, OLD.builds_access_level,
            OLD.ci_inbound_job_token_scope_enabled, OLD.ci_pipeline_variables_minimum_override_role)
        IS DISTINCT FROM (NEW.namespace_id, NEW.path, NEW.full_path, NEW.visibility, NEW.default_branch, NEW.archived,
            NEW.public_jobs, NEW.repository_access_level, NEW.builds_access_level,
            NEW.ci_inbound_job_token_scope_enabled, NEW.ci_pipeline_variables_minimum_override_role))
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_removal AFTER DELETE ON projects FOR EACH ROW EXECUTE FUNCTION tell_of_rights();

CREATE TRIGGER tell_of_rights AFTER UPDATE OR DELETE ON routes FOR EACH ROW EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_rights AFTER INSERT OR UPDATE OR DELETE ON members FOR EACH ROW
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_rights AFTER INSERT OR DELETE ON job_token_allowed_projects FOR EACH ROW
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_rights AFTER INSERT OR DELETE ON job_token_allowed_groups FOR EACH ROW
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_rights AFTER UPDATE ON application_settings FOR EACH ROW EXECUTE FUNCTION tell_of_rights();
