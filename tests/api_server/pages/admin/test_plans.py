"""Lists of the whole instance stay cheap where there is very much: an index finds just what a page shows."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from api_server.pages.admin import queries
from api_server.state import database
from api_server.state.database import Database, Executor
from api_server.state.listing import Page
from tests.api_server.test_many_rows import Explaining

#: More show the same: `ROWS=200000` in the environment.
ROWS = int(os.environ.get("ROWS", "3000"))
PAGE = Page(20, counted=False)

#: One project with very many mirrors, deliveries and tokens, of which few fail.
LOAD = """
INSERT INTO users (username, name, email, static_object_seed, static_object_digest, created_at, updated_at)
VALUES ('alice', 'Alice', 'alice@example.org', '', '', %(now)s, %(now)s);
INSERT INTO namespaces (kind, owner_id, name, path, full_path, full_name, visibility, created_at, updated_at)
SELECT 'user', id, 'Alice', 'alice', 'alice', 'Alice', 'public', %(now)s, %(now)s FROM users;
UPDATE namespaces SET lineage = ARRAY[id];
INSERT INTO projects (namespace_id, name, path, full_path, visibility, last_activity_at, created_at, updated_at)
SELECT id, 'App', 'app', 'alice/app', 'private', %(now)s, %(now)s, %(now)s FROM namespaces;
INSERT INTO merge_requests (project_id, iid, author_id, title, source_branch, target_branch, head_sha, start_sha,
    last_commit, mergeability, created_at, updated_at)
SELECT projects.id, 1, users.id, 'Change', 'topic', 'main', 'a', 'b', '{}', 'mergeable', %(now)s, %(now)s
FROM projects, users;
INSERT INTO external_status_checks (project_id, name, external_url)
SELECT id, 'QA', 'http://qa.example.org' FROM projects;
INSERT INTO status_check_deliveries (check_id, merge_request_id, body, status, next_attempt_at)
SELECT checks.id, m.id, '', CASE WHEN n %% 1000 = 1 THEN 'failed' ELSE 'delivered' END, NULL
FROM external_status_checks checks, merge_requests m, generate_series(1, %(rows)s) n;
INSERT INTO remote_mirrors (project_id, enabled, url, shown_url, uniqueness_key, auth_method, host_keys,
    only_protected_branches, keep_divergent_refs, last_error)
SELECT id, true, 'https://x/' || n, 'https://x/' || n, n::text, 'password', '[]', false, false,
    CASE WHEN n %% 1000 = 1 THEN 'refused' END
FROM projects, generate_series(1, %(rows)s) n;
INSERT INTO personal_access_tokens (user_id, name, digest, scopes, created_at)
SELECT id, 'n', sha256(n::text::bytea), '{api}', %(now)s FROM users, generate_series(1, %(rows)s) n;
INSERT INTO runners (runner_type, token_digest, created_at)
SELECT 'instance_type', sha256(n::text::bytea), %(now)s FROM generate_series(1, %(rows)s) n;
ANALYZE
"""

CHEAP: dict[str, tuple[str, Callable[[Executor], Awaitable[Any]]]] = {
    "deliveries": ("status_check_deliveries", lambda d: queries.list_deliveries(d, PAGE, None)),
    "failed deliveries": (
        "status_check_deliveries",
        lambda d: queries.list_deliveries(d, PAGE, "failed"),
    ),
    "queued deliveries": (
        "status_check_deliveries",
        lambda d: queries.list_deliveries(d, PAGE, "queued"),
    ),
    "mirrors": ("remote_mirrors", lambda d: queries.list_mirrors(d, PAGE, None)),
    "failing mirrors": ("remote_mirrors", lambda d: queries.list_mirrors(d, PAGE, "failing")),
    "tokens": (
        "personal_access_tokens tokens",
        lambda d: queries.list_tokens(d, PAGE, username=None, state="active"),
    ),
    "a user's tokens": (
        "personal_access_tokens tokens",
        lambda d: queries.list_tokens(d, PAGE, username="alice", state=None),
    ),
    "runners": (
        "runners",
        lambda d: queries.list_runners(d, PAGE, status=None, runner_type=None, paused=None),
    ),
}


@pytest.fixture(scope="module")
async def many(new_database: Callable[[], str]) -> AsyncIterator[Database]:
    async with database.connect(
        new_database(), base_url="http://forge.example.org", size=1, statement_timeout=600
    ) as connected:
        async with connected.transaction() as transaction:
            for part in LOAD.split(";\n"):
                await transaction.rows(part, rows=ROWS)
            # So few rows are read whole with good reason; what has no index is read whole even so.
            await transaction.rows("SET enable_seqscan = off")
        yield connected


@pytest.mark.parametrize("name", CHEAP)
async def test_a_page_is_found_by_an_index(many: Database, name: str) -> None:
    table, read = CHEAP[name]
    explaining = Explaining(many)
    await read(explaining)
    assert f"Seq Scan on {table}" not in explaining.plan, explaining.plan
    assert "Sort  (" not in explaining.plan.partition("CTE probe")[2].partition("CTE page")[0], (
        explaining.plan
    )
