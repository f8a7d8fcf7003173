-- Settings of projects and groups that GitLab keeps too, and what it shows of users.
-- depends: 0020_pipelines_and_jobs 0110_ways_to_merge

ALTER TABLE projects
    -- Seconds, of jobs whose file says nothing else.
    ADD COLUMN build_timeout integer NOT NULL DEFAULT 3600,
    -- What a merge request begins with whose author says nothing else.
    ADD COLUMN remove_source_branch_after_merge boolean NOT NULL DEFAULT false,
    -- Commits of history that runners fetch; 0 is all of it.
    ADD COLUMN ci_default_git_depth integer NOT NULL DEFAULT 20,
    ADD COLUMN build_git_strategy text NOT NULL DEFAULT 'fetch' CHECK (build_git_strategy IN ('fetch', 'clone')),
    ADD COLUMN auto_cancel_pending_pipelines text NOT NULL DEFAULT 'enabled'
        CHECK (auto_cancel_pending_pipelines IN ('enabled', 'disabled'));

ALTER TABLE users
    -- From where the last two sessions were begun.
    ADD COLUMN current_sign_in_ip text,
    ADD COLUMN last_sign_in_ip text,
    ADD COLUMN created_by_id bigint REFERENCES users ON DELETE SET NULL;
CREATE INDEX users_created_by ON users (created_by_id) WHERE created_by_id IS NOT NULL;

ALTER TABLE namespaces
    -- Who makes projects in a group.
    ADD COLUMN project_creation_level text NOT NULL DEFAULT 'developer'
        CHECK (project_creation_level IN ('noone', 'administrator', 'owner', 'maintainer', 'developer'));
