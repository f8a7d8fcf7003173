"""Rules of ARCHITECTURE.md that a program can check, for the source of the whole project."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    str(path.relative_to(ROOT)): path
    for folder in ("api_server", "storage_edge", "common", "forgelet", "scripts", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
SERVER = [name for name in FILES if name.startswith("api_server/")]
#: Modules whose functions answer requests of the API.
HANDLERS = [name for name in SERVER if "routes = Routes()" in FILES[name].read_text()]

MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_FUNCTION = 50
MOST_STATEMENTS_OF_A_HANDLER = 15

#: The beginning of a statement, which is not the beginning of a sentence.
_SQL = re.compile(
    r"\s*(?:SELECT\s+\S|INSERT INTO \w|UPDATE \w+\s+(?:SET\b|\w+ SET\b)|DELETE FROM \w"
    r"|WITH (?:RECURSIVE )?\w+ (?:\(|AS ))"
)
_CLOCKS = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("date", "today"),
    ("datetime", "today"),
    ("time", "time"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text())


@pytest.fixture(scope="module", autouse=True)
def trees() -> None:
    """Parse all files before the first test, which would seem slow otherwise."""
    for name in FILES:
        tree_of(name)


def functions(tree: ast.AST) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def statements(function: Function) -> int:
    """Return the number of statements in the function's body, including inner ones but not the docstring."""
    inner = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    return len(inner) - (1 if ast.get_docstring(function) is not None else 0)


def is_route(function: Function) -> bool:
    return any(ast.unparse(decorator).startswith("routes.") for decorator in function.decorator_list)


def test_no_file_is_long() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in FILES.items()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_long() -> None:
    long = {
        f"{name}:{function.name}": lines
        for name in FILES
        for function in functions(tree_of(name))
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    }
    assert long == {}


def test_no_part_of_the_server_holds_a_third_of_it() -> None:
    lines: dict[str, int] = {}
    for path in (ROOT / "api_server").rglob("*"):
        if path.suffix in (".py", ".sql"):
            part = path.relative_to(ROOT / "api_server").parts[0]
            lines[part] = lines.get(part, 0) + len(path.read_text().splitlines())
    assert max(lines.values()) < 0.3 * sum(lines.values()), lines


def test_there_are_handlers() -> None:
    assert len(HANDLERS) > 30


def test_a_handler_only_parses_finds_asks_and_answers() -> None:
    wrong = []
    for name in HANDLERS:
        for handler in filter(is_route, functions(tree_of(name))):
            wrong += [f"{name}:{node.lineno}: try" for node in ast.walk(handler) if isinstance(node, ast.Try)]
            wrong += [  # the route gives the parameters
                f"{name}:{node.lineno}: {node.func.id}"
                for node in ast.walk(handler)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"structure", "merged", "in_url"}
            ]
            if statements(handler) > MOST_STATEMENTS_OF_A_HANDLER:
                wrong.append(f"{name}:{handler.lineno}: {statements(handler)} statements")
    assert wrong == []


#: Modules that use HTTP by their nature, besides handlers, `web/`, `pages/`, `testing/` and the places where the parts
#: are joined.
SPEAKS_HTTP = {
    "ci/runners/access.py": "tokens of runners and jobs, in headers and bodies of their own",
    "ci/runners/uploads.py": "artifacts as they arrive",
    "ci/triggers/firing.py": "a trigger's own token and payload",
    "code/file_answers.py": "files as answers",
    "code/git_access.py": "who asks by Basic authentication",
    "code/lfs.py": "objects that come and go",
    "code/push_judgement.py": "a push while it is answered",
    "code/reading.py": "pages of what git lists",
    "namespaces/access.py": "the rules of routes, and redirects to moved paths",
    "outbound/edges.py": "a middleware: the edges are told before the answer",
    "static_objects/access.py": "tokens of static objects",
    "static_objects/archives.py": "archives as answers",
    "static_objects/raw.py": "files as answers",
}


def test_the_domain_knows_no_http() -> None:
    found = {
        name.removeprefix("api_server/")
        for name in SERVER
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.ImportFrom)
        and node.module == "aiohttp"
        and "web" in {one.name for one in node.names}
    }
    joined = ("app.py", "api.py", "web/", "pages/", "testing/", "description/")
    assert {name for name in found if not name.startswith(joined) and "handlers" not in name} == set(
        SPEAKS_HTTP
    )


def test_sql_stands_in_modules_of_queries() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name in SERVER
        if not (name.endswith("queries.py") or name.startswith("api_server/state/"))
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.match(node.value)
    ]
    assert found == []


def test_time_comes_from_the_application() -> None:
    """Only `state.database.system_clock`, which the application is given, asks the machine for the time."""
    asked = [
        f"{name}:{node.lineno}"
        for name in SERVER
        for function in functions(tree_of(name))
        if function.name != "system_clock"
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (ast.unparse(node.func.value).rpartition(".")[2], node.func.attr) in _CLOCKS
    ]
    assert asked == []
