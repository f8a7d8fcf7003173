"""Statements that insert waiting jobs, and runners that may take them."""

NAMESPACES = """
    INSERT INTO namespaces (id, kind, lineage, name, path, full_path, full_name, visibility)
    OVERRIDING SYSTEM VALUE VALUES (1, 'group', '{1}', 'a', 'a', 'a', 'a', 'public'),
        (2, 'group', '{1,2}', 'b', 'b', 'a/b', 'a/b', 'public'), (3, 'group', '{3}', 'c', 'c', 'c', 'c', 'public')
"""
PROJECT = """
    INSERT INTO projects (id, namespace_id, name, path, full_path, visibility, archived, builds_access_level)
    OVERRIDING SYSTEM VALUE VALUES (%(id)s, %(namespace)s, %(id)s, %(id)s, 'a/' || %(id)s, 'public', %(archived)s,
        %(builds)s);
    INSERT INTO pipelines (id, project_id, iid, source, ref, sha, before_sha, commit)
    OVERRIDING SYSTEM VALUE VALUES (%(id)s, %(id)s, 1, 'push', 'main', '', '', '{}')
"""
JOB = """
    INSERT INTO jobs (project_id, pipeline_id, kind, status, tag_list, protected, name, stage, stage_index, when_run,
        allow_failure, plan)
    VALUES (%(project)s, %(project)s, %(kind)s, %(status)s, %(tags)s::text[], %(protected)s, %(name)s, 'test', 0,
        'on_success', false, '{}')
    RETURNING id
"""
RUNNER = """
    INSERT INTO runners (runner_type, namespace_id, token_digest, tag_list, run_untagged, access_level, active)
    VALUES (%(type)s, %(namespace)s, sha256(gen_random_uuid()::text::bytea),
        %(tags)s::text[], %(untagged)s, %(access)s, %(active)s) RETURNING id
"""
TAKE = "UPDATE jobs SET status = 'running' WHERE id = %(id)s"
