"""One question asked of many cases in one test: every case that fails is named, not only the first."""

import contextlib
from collections.abc import Iterator


class Deviations(list[str]):
    """What differs, an entry for each case. End the test with `assert not deviations, deviations.report`."""

    @contextlib.contextmanager
    def of(self, case: str) -> Iterator[None]:
        """Note an assertion that fails in the block, with the name of its case, and go on behind the block.
        Another error ends the test and has the case's name as a note."""
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
