"""A check of many cases in one test, which reports every failing case instead of only the first."""

import contextlib
from collections.abc import Iterator


class Deviations(list[str]):
    """Descriptions of the cases that differ. End the test with `assert not deviations, deviations.report`."""

    @contextlib.contextmanager
    def of(self, case: str) -> Iterator[None]:
        """Store an assertion that fails in the block, with the name of its case, and continue after the block. Any
        other error ends the test, with the case's name as a note."""
        try:
            yield
        except AssertionError as error:
            self.append(f"{case}: {error}")
        except Exception as error:
            error.add_note(f"in the case {case}")
            raise

    @property
    def report(self) -> str:
        return "\n".join(self)
