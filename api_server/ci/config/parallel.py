"""`parallel`: the several jobs that one job of the file stands for."""

import itertools
from typing import Any

from attrs import frozen

from api_server.ci.config.errors import ConfigError
from api_server.ci.config.keywords import MAX_PARALLEL
from api_server.ci.config.names import MAX_NAME
from api_server.ci.config.variables import Variable


@frozen(kw_only=True)
class Instance:
    """One of them; `index` counts from 1 and is None for a job without `parallel`."""

    name: str
    variables: tuple[Variable, ...] = ()
    index: int | None = None
    total: int = 1


def instances(name: str, parallel: Any) -> list[Instance]:
    """`test` alone, or `test 1/3`..., or `test: [aws, small]`... for each row of a matrix, some of which may be the
    same: of each name the last one counts."""
    if parallel is None:
        return [Instance(name=name)]
    if isinstance(parallel, int):
        return [
            Instance(name=_named(name, f" {index}/{parallel}"), index=index, total=parallel)
            for index in range(1, parallel + 1)
        ]
    rows = _rows(name, parallel["matrix"])
    return [
        Instance(
            name=_named(name, f": [{', '.join(row.values())}]"),
            variables=tuple(Variable(key, value) for key, value in row.items()),
            index=index,
            total=len(rows),
        )
        for index, row in enumerate(rows, start=1)
    ]


def _named(name: str, suffix: str) -> str:
    if len(name) + len(suffix) > MAX_NAME:
        raise ConfigError(_too_long(name))
    return name + suffix


def _too_long(name: str) -> str:
    return f"jobs:{name}:parallel config gives a job a name of more than {MAX_NAME} characters"


def _rows(name: str, matrix: list[dict[str, Any]]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for block in matrix:
        if len(block) > MAX_NAME:  # and so would be each job's name
            raise ConfigError(_too_long(name))
        axes = [[str(one) for one in (axis if isinstance(axis, list) else [axis])] for axis in block.values()]
        combinations = itertools.islice(itertools.product(*axes), MAX_PARALLEL + 1)
        rows += [dict(zip(block, combination, strict=True)) for combination in combinations]
        if len(rows) > MAX_PARALLEL:
            raise ConfigError(
                f"jobs:{name}:parallel config generates too many jobs (maximum is {MAX_PARALLEL})"
            )
    return rows
