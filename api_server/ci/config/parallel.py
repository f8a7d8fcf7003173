"""`parallel`: the jobs that one job of the file stands for, and `$[[ matrix.NAME ]]` in their needs."""

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from attrs import frozen

from api_server.ci.config.checks import MAX_NAME, Each, Fields
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.variables import Variable

MAX_PARALLEL = 200
#: Maximum characters of a text in which expressions are replaced: longer texts would give names that are too
#: long.
MAX_EXPRESSION = 4096

_EXPRESSION = re.compile(r"\$\[\[\s*matrix\.([a-zA-Z0-9_-]+)\s*\]\]")


def _row(path: str, value: dict[str, Any]) -> Iterator[str]:
    """Check one hash of a matrix: variables, and the values that each of them takes."""
    axes = [axis if isinstance(axis, list) else [axis] for axis in value.values()]
    if any(len(key) > MAX_NAME for key in value):
        yield f"{path}:variables config has a key of more than {MAX_NAME} characters"
    elif not all(axes) or not all(type(item) in {str, int} for axis in axes for item in axis):
        yield f"{path}:variables config should be a hash of key value pairs, value can be an array"
    elif not value:
        yield f"{path}:variables config requires at least 1 items"


#: The forms of `parallel` other than a number, for a job and for its needs.
matrix = Fields(
    {
        "matrix": Each(
            _row,
            types=(dict,),
            of="hashes",
            at_most=MAX_PARALLEL,
            too_many="config generates too many jobs (maximum is {})",
        )
    },
    required=["matrix"],
)


@frozen(kw_only=True, slots=False)
class Instance:
    """One of the jobs that `parallel` creates; `index` counts from 1 and is None for a job without
    `parallel`."""

    #: The job of the file.
    family: str
    name: str
    variables: tuple[Variable, ...] = ()
    index: int | None = None
    total: int = 1

    @cached_property
    def row(self) -> Mapping[str, str]:
        """The values of this instance in the job's matrix."""
        return {variable.key: variable.value for variable in self.variables}

    def written_out(self, value: Any) -> Any:
        """Return `value` with `$[[ matrix.NAME ]]` replaced in all its texts.

        Raise CiConfigError with the names that the job's matrix does not have.
        """
        if not has_expressions(value):
            return value
        missing: dict[str, None] = {}

        def of_row(match: re.Match[str]) -> str:
            if match[1] not in self.row:
                missing[match[1]] = None
            return self.row.get(match[1], match[0])

        def replaced(value: Any) -> Any:
            if isinstance(value, str):
                return _EXPRESSION.sub(of_row, value) if len(value) <= MAX_EXPRESSION else value
            if isinstance(value, dict):
                return {key: replaced(inner) for key, inner in value.items()}
            return [replaced(inner) for inner in value] if isinstance(value, list) else value

        result = replaced(value)
        if missing:
            raise CiConfigError(
                *(f"{self.family} job: '{name}' does not exist in matrix configuration" for name in missing)
            )
        return result


def has_expressions(value: Any) -> bool:
    """Return whether a text in `value` may contain `$[[ matrix.NAME ]]`."""
    if isinstance(value, str):
        return "$[[" in value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(has_expressions, inner))


def instances(name: str, parallel: Any) -> list[Instance]:
    """Return `test` alone, or `test 1/3`..., or `test: [aws, small]`... for each row of a matrix.

    Names may occur twice; of each name the last instance counts.
    """
    if parallel is None:
        return [Instance(family=name, name=name)]
    if isinstance(parallel, int):
        return [
            Instance(
                family=name, name=_with_suffix(name, f" {index}/{parallel}"), index=index, total=parallel
            )
            for index in range(1, parallel + 1)
        ]
    rows = _rows(name, parallel["matrix"])
    return [
        Instance(
            family=name,
            name=_with_suffix(name, f": [{', '.join(row.values())}]"),
            variables=tuple(Variable(key, value) for key, value in row.items()),
            index=index,
            total=len(rows),
        )
        for index, row in enumerate(rows, start=1)
    ]


def _with_suffix(name: str, suffix: str) -> str:
    if len(name) + len(suffix) > MAX_NAME:
        raise CiConfigError(_name_too_long(name))
    return name + suffix


def _name_too_long(name: str) -> str:
    return f"jobs:{name}:parallel config gives a job a name of more than {MAX_NAME} characters"


def _rows(name: str, blocks: list[dict[str, Any]]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for block in blocks:
        if len(block) > MAX_NAME:  # each job's name would be too long, too
            raise CiConfigError(_name_too_long(name))
        axes = [
            [str(item) for item in (axis if isinstance(axis, list) else [axis])] for axis in block.values()
        ]
        combinations = itertools.islice(itertools.product(*axes), MAX_PARALLEL + 1)
        rows += [dict(zip(block, combination, strict=True)) for combination in combinations]
        if len(rows) > MAX_PARALLEL:
            raise CiConfigError(
                f"jobs:{name}:parallel config generates too many jobs (maximum is {MAX_PARALLEL})"
            )
    return rows
