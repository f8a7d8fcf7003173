"""Charts of figures, and lists of the whole instance that stay cheap with very much data."""

import datetime
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from api_server.pages.admin import queries
from api_server.pages.admin.overview import Chart, Series, amount, described, drawing, rounded_up, rows
from api_server.state.database import Database, Executor
from api_server.state.listing import Page
from tests.api_server.test_many_rows import Explaining
from tests.support.plans import loaded

NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
SVG = "{http://www.w3.org/2000/svg}"


def _series(label: str, *values: float, minutes: int = 1) -> Series:
    step = datetime.timedelta(minutes=minutes)
    return Series(label, [(NOON + number * step, value) for number, value in enumerate(values)])


def _drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(drawing(chart, "it"))


def _paths(chart: Chart) -> list[str]:
    return [each.attrib["d"] for each in _drawn(chart).iter("path")]


def test_a_drawing_has_a_role_a_title_and_a_description() -> None:
    drawn = _drawn(Chart("Jobs", [_series("running", 1, 4, 2)]))
    assert drawn.attrib["role"] == "img"
    names = drawn.attrib["aria-labelledby"].split()
    told = {each.attrib["id"]: each.text for each in drawn if "id" in each.attrib}
    assert [told[name] for name in names] == [
        "Jobs",
        "From 12:00 to 12:02 UTC. Latest values: running 2 (maximum 4).",
    ]


def test_lines_are_told_apart() -> None:
    chart = Chart("Jobs", [_series("running", 1), _series("pending", 2)])
    assert [each.attrib["class"] for each in _drawn(chart).iter("path")] == ["line line-0", "line line-1"]


def test_a_point_stands_where_its_moment_and_its_value_are() -> None:
    (path,) = _paths(Chart("Share", [_series("hits", 0, 50, 100)], unit="%"))
    places = [tuple(map(float, place)) for place in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]
    assert places == [(44.0, 100.0), (178.0, 54.0), (312.0, 8.0)]


def test_a_gap_is_not_drawn_over() -> None:
    points = [(NOON + datetime.timedelta(minutes=at), 1.0) for at in (0, 1, 2, 30, 31)]
    (path,) = _paths(Chart("Jobs", [Series("running", points)]))
    assert (path.count("M"), path.count("L")) == (2, 3)


def test_what_users_named_is_text() -> None:
    chart = Chart("<b>", [_series('"><script>', 1)])
    assert "<b>" not in drawing(chart, "it")
    assert "<script>" not in drawing(chart, "it")


@pytest.mark.parametrize("series", [[], [Series("running", [])]])
def test_without_figures_it_says_so(series: list[Series]) -> None:
    chart = Chart("Jobs", series)
    assert described(chart) == "No data yet."
    assert (rows(chart), _paths(chart)) == ([], [])


def test_the_table_has_the_newest_figures_first_and_not_too_many() -> None:
    chart = Chart("Jobs", [_series("running", *range(100)), _series("pending", *range(50))])
    table = rows(chart)
    assert len(table) <= 12
    assert table[0] == ("13:39", ["99", "–"])
    assert table[-1][1][0] == table[-1][1][1]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "", "0"),
        (1234, "", "1,234"),
        (1536, "B", "1.5 KiB"),
        (5 * 2**40, "B", "5 TiB"),
        (0.25, "s", "250 ms"),
        (12, "s", "12 s"),
        (33.333, "%", "33.3 %"),
    ],
)
def test_amounts_are_read_by_people(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (3, 5), (5, 5), (51, 100), (0.03, 0.05), (1000, 1000)]
)
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert rounded_up(value) == pytest.approx(top)


#: More rows give the same result: `ROWS=200000` in the environment.
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
    "failed deliveries": ("status_check_deliveries", lambda d: queries.list_deliveries(d, PAGE, "failed")),
    "queued deliveries": ("status_check_deliveries", lambda d: queries.list_deliveries(d, PAGE, "queued")),
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
    "runners": ("runners", lambda d: queries.list_runners(d, PAGE, status=None, runner_type=None, paused=None)),
}  # fmt: skip


@pytest.fixture(scope="module")
async def many(new_database: Callable[[], str]) -> AsyncIterator[Database]:
    async with loaded(new_database(), LOAD, rows=ROWS) as database:
        yield database


@pytest.mark.parametrize("name", CHEAP)
async def test_a_page_is_found_by_an_index(many: Database, name: str) -> None:
    table, read = CHEAP[name]
    explaining = Explaining(many)
    await read(explaining)
    assert f"Seq Scan on {table}" not in explaining.plan, explaining.plan
    assert "Sort  (" not in explaining.plan.partition("CTE probe")[2].partition("InitPlan")[0], (
        explaining.plan
    )
