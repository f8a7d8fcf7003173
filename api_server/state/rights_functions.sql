-- Functions about rights. They are applied before functions.sql, whose first lines are valid here too.

-- Former versions, which did not take the time as an argument.
DROP FUNCTION IF EXISTS namespace_role(namespaces, bigint), project_role(projects, namespaces, bigint);

-- Return whether something that expires on a day has expired. It does when that day begins in UTC.
CREATE OR REPLACE FUNCTION has_expired(expires_at date, moment timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN expires_at IS NOT NULL AND expires_at <= (moment AT TIME ZONE 'UTC')::date;

-- Return whether a membership still gives rights.
CREATE OR REPLACE FUNCTION counts(m members, moment timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN NOT has_expired((m).expires_at, moment);

-- Return the greatest role of a user in a namespace, from memberships of it and its ancestors, or 0; 50 for its owner.
CREATE OR REPLACE FUNCTION namespace_role(n namespaces, for_user_id bigint, moment timestamptz) RETURNS integer
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN CASE WHEN (n).owner_id = for_user_id THEN 50 ELSE coalesce((
    SELECT max(members.access_level) FROM members
    WHERE members.user_id = for_user_id AND members.namespace_id = ANY ((n).lineage) AND counts(members, moment)
), 0) END;
END $$;

-- Return the greatest role of a user in a project, which may be inherited, or 0.
CREATE OR REPLACE FUNCTION project_role(p projects, n namespaces, for_user_id bigint, moment timestamptz)
RETURNS integer
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN greatest(namespace_role(n, for_user_id, moment), coalesce((
    SELECT max(members.access_level) FROM members
    WHERE members.user_id = for_user_id AND members.project_id = (p).id AND counts(members, moment)
), 0));
END $$;

-- Return whether a caller may see what is internal: all users may except external ones. The id is null for anonymous
-- callers.
CREATE OR REPLACE FUNCTION is_insider(for_user_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$ BEGIN
RETURN EXISTS (SELECT FROM users WHERE users.id = for_user_id AND NOT users.external);
END $$;

-- Return whether a caller may see a project or a group of this visibility. The members of a project are callers who are
-- at least Guests; the members of a group are callers with any role.
CREATE OR REPLACE FUNCTION is_visible(visibility text, to_member boolean, to_insider boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN to_member OR visibility = 'public' OR (visibility = 'internal' AND to_insider);

-- Return whether a project accepts the tokens of a project's jobs. It accepts those of its own jobs and of the projects
-- and groups on its allow-list, and all tokens if it does not limit them.
CREATE OR REPLACE FUNCTION lets_in_jobs_of(p projects, job_project_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN job_project_id = (p).id OR NOT (p).ci_inbound_job_token_scope_enabled
    OR EXISTS (
        SELECT FROM job_token_allowed_projects allowed
        WHERE allowed.project_id = (p).id AND allowed.target_id = job_project_id)
    OR EXISTS (
        SELECT FROM projects jobs_project
        JOIN namespaces ON namespaces.id = jobs_project.namespace_id
        JOIN job_token_allowed_groups allowed ON allowed.target_id = ANY (namespaces.lineage)
        WHERE jobs_project.id = job_project_id AND allowed.project_id = (p).id);
END $$;

-- Return whether a name matches a pattern in which `*` stands for any characters, as in names of protected branches.
CREATE OR REPLACE FUNCTION wildcard_matches(pattern text, name text) RETURNS boolean LANGUAGE sql IMMUTABLE
PARALLEL SAFE
RETURN name LIKE replace(replace(replace(replace(pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%');

-- Return whether a rule of the project protects the branch.
CREATE OR REPLACE FUNCTION is_protected_branch(of_project_id bigint, branch text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN EXISTS (
    SELECT FROM protected_branches
    WHERE protected_branches.project_id = of_project_id AND wildcard_matches(protected_branches.name, branch)
);
END $$;

-- Return whether a caller with this role in the project may add commits to the branch, by merging or by pushing: the
-- rules of code/protection.py.
CREATE OR REPLACE FUNCTION may_merge_into(p projects, branch text, role integer, is_admin boolean) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN (
    SELECT CASE WHEN count(*) = 0 THEN role >= 30
        ELSE bool_or(levels.level <> 0 AND (is_admin OR levels.level <> 60 AND role >= levels.level)) END
    FROM protected_branches rules CROSS JOIN LATERAL (
        VALUES (rules.push_access_level), (rules.merge_access_level)) levels (level)
    WHERE rules.project_id = (p).id AND wildcard_matches(rules.name, branch)
);
END $$;

-- Return whether a caller with this role in the project may see it and read its files: the rule of
-- `Project.reads_repository`.
CREATE OR REPLACE FUNCTION reads_repository(p projects, role integer, is_insider boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN is_visible((p).visibility, role >= 10, is_insider)
    AND ((p).repository_access_level = 'enabled' OR (p).repository_access_level = 'private' AND role >= 10)
    AND NOT ((p).visibility = 'private' AND role < 20);

-- Return the user who has confirmed this email address, as the address of the account or as a further one.
CREATE OR REPLACE FUNCTION owner_of_address(address text) RETURNS TABLE (id bigint, username text, name text)
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
SELECT users.id, users.username, users.name FROM users
WHERE lower(users.email) = lower(address) AND users.confirmed_at IS NOT NULL
UNION ALL
SELECT users.id, users.username, users.name FROM user_emails JOIN users ON users.id = user_emails.user_id
WHERE lower(user_emails.email) = lower(address) AND user_emails.confirmed_at IS NOT NULL;
END;

-- Return the role of an inviter in the group or the project of an invitation, which is 50 for administrators; 0 for
-- users who are not active or no longer exist.
CREATE OR REPLACE FUNCTION inviting_role(inviter_id bigint, to_namespace_id bigint, to_project_id bigint,
    moment timestamptz) RETURNS integer
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN coalesce((
    SELECT CASE
        WHEN users.admin THEN 50
        WHEN projects.id IS NULL THEN namespace_role(namespaces, users.id, moment)
        ELSE project_role(projects, holders, users.id, moment) END
    FROM users
    LEFT JOIN namespaces ON namespaces.id = to_namespace_id
    LEFT JOIN projects ON projects.id = to_project_id
    LEFT JOIN namespaces holders ON holders.id = projects.namespace_id
    WHERE users.id = inviter_id AND users.state = 'active'
), 0);
END $$;

-- Return the role that an inviter needs for an invitation: Owner for a group; for a project the invited role, but at
-- least Maintainer.
CREATE OR REPLACE FUNCTION role_to_invite(i invitations) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN (i).project_id IS NULL THEN 50 ELSE greatest((i).access_level, 40) END;

-- Return whether the inviter may still invite. If not, the invitation is not valid.
CREATE OR REPLACE FUNCTION invitation_holds(i invitations, moment timestamptz) RETURNS boolean LANGUAGE sql STABLE
RETURN inviting_role((i).created_by_id, (i).namespace_id, (i).project_id, moment) >= role_to_invite(i);
