-- depends: 0001_accounts_and_projects
-- What keeps lists cheap where there are very many projects.

CREATE INDEX projects_name ON projects (name, id);
CREATE INDEX projects_activity ON projects (last_activity_at, id);
CREATE INDEX projects_archived ON projects (id) WHERE archived;
CREATE INDEX namespaces_group_name ON namespaces (name, id) WHERE kind = 'group';
CREATE INDEX users_blocked ON users (id) WHERE state = 'blocked';
