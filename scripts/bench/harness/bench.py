"""One run of the bench: how large its data are, and what is set up once for all rows that want it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, TypeVar

import attrs

T = TypeVar("T")


@attrs.frozen
class Size:
    """Numbers of rows, and what a round takes."""

    jobs: int = 200_000
    events: int = 1_000_000
    few_events: int = 10_000
    chained_events: int = 50_000
    refs: int = 5_000
    projects: int = 10_000
    deliveries: int = 3_000
    handed_out: int = 200
    renamings: int = 300
    resets: int = 400
    crowd: int = 1_000
    large_repository: int = 200_000_000  # bytes
    large_object: bool = True  # 64 MiB and 50 MB through the edge
    seconds: float = 0.6
    rounds: int = 3


FULL = Size()
#: What the tests run, to see that each row can be measured.
TINY = Size(
    jobs=300,
    events=400,
    few_events=200,
    chained_events=300,
    refs=20,
    projects=30,
    deliveries=20,
    handed_out=5,
    renamings=3,
    resets=2,
    crowd=5,
    large_repository=6_000_000,
    large_object=False,
    seconds=0.1,
    rounds=1,
)


class Bench:
    """`with Bench(FULL) as bench:`, which ends what rows have set up."""

    def __init__(self, size: Size = FULL) -> None:
        self.size = size
        self._stack = ExitStack()
        self._used: dict[object, Any] = {}
        self._folders = 0

    def __enter__(self) -> "Bench":
        self.folder = Path(
            self._stack.enter_context(TemporaryDirectory(prefix="forgelet-bench-", dir="/tmp"))
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, problem, trace)

    def use(self, make: Callable[["Bench"], AbstractContextManager[T]]) -> T:
        """What `make` sets up, the same for all who ask; it ends with the bench. What could not be set up is tried
        once, and its reason raised to all."""
        if make not in self._used:
            try:
                self._used[make] = self._stack.enter_context(make(self))
            except Exception as problem:
                self._used[make] = problem
        made = self._used[make]
        if isinstance(made, Exception):
            raise made
        return made  # type: ignore[no-any-return]

    def new_folder(self) -> Path:
        """An empty one, which goes with the bench."""
        self._folders += 1
        folder = self.folder / str(self._folders)
        folder.mkdir()
        return folder

    def keep(self, context: AbstractContextManager[T]) -> T:
        """Entered now, and ended with the bench."""
        return self._stack.enter_context(context)


def with_rounds(size: Size, rounds: int) -> Size:
    """The same with another number of rounds."""
    return attrs.evolve(size, rounds=rounds)
