-- depends: 0020_pipelines_and_jobs 0030_merge_requests
-- What keeps lists cheap in every order that they can be asked for, and under the filters that find few of many.

CREATE INDEX projects_path ON projects (path, id);
CREATE INDEX projects_updated ON projects (updated_at, id);
CREATE INDEX namespaces_group_path ON namespaces (path, id) WHERE kind = 'group';
CREATE INDEX users_name ON users (name, id);
CREATE INDEX users_by_username ON users (username, id);
CREATE INDEX users_updated ON users (updated_at, id);
CREATE INDEX pipelines_source ON pipelines (project_id, source, id);
CREATE INDEX pipelines_updated ON pipelines (project_id, updated_at, id);
CREATE INDEX merge_requests_source_branch ON merge_requests (project_id, source_branch, id);
CREATE INDEX merge_requests_updated ON merge_requests (project_id, updated_at, id);
