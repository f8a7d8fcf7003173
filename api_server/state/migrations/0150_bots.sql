-- depends: 0012_more_list_indices
-- Users that the access tokens of a project or a group sign in as: members of that place, and removed with their tokens.
-- One that has been removed is `deactivated` and belongs nowhere any more; what it has made goes on naming it.
ALTER TABLE users
    ADD COLUMN bot boolean NOT NULL DEFAULT false,
    ADD COLUMN bot_project_id bigint REFERENCES projects ON DELETE SET NULL,
    ADD COLUMN bot_namespace_id bigint REFERENCES namespaces ON DELETE SET NULL,
    ADD CHECK (bot OR num_nonnulls(bot_project_id, bot_namespace_id) = 0),
    DROP CONSTRAINT users_state_check,
    ADD CHECK (state IN ('active', 'blocked') OR state = 'deactivated' AND bot);
CREATE INDEX users_bot_project ON users (bot_project_id, id) WHERE bot_project_id IS NOT NULL;
CREATE INDEX users_bot_namespace ON users (bot_namespace_id, id) WHERE bot_namespace_id IS NOT NULL;
CREATE INDEX users_bots ON users (id) WHERE bot AND state <> 'deactivated'; -- those whose tokens have expired
