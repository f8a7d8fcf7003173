"""What an attack has come to, as a row of a table, and the aims that it is held against."""

from collections import Counter

import attrs

from scripts.abuse.innocent import Felt
from scripts.abuse.watching import Held, Peak, megabytes

#: The innocent client's 99th percentile may be this many times its quiet value.
SLOWER = 5
#: Bytes that the API process may hold at any moment.
MEMORY = 300 * 2**20
#: Bytes that each process may hold more after an attack than before the first one.
LEFT = 100 * 2**20
#: Descriptors that a process may have more of afterwards: connections that stay in the pool of the database.
KEPT = 4
HEADING = (
    f"{'attack':22}{'p99':>9}{'x quiet':>9}{'longest':>9}{'failed':>8}{'step ms':>9}{'API MB':>8}{'edge MB':>9}"
    f"{'MB left':>9}{'children':>10}{'their MB':>10}{'descriptors':>13}  answers"
)


@attrs.frozen(kw_only=True)
class Outcome:
    """An attack, what it was answered, what an innocent client felt, and what both servers held: the most, before and
    after it."""

    name: str
    answers: "Counter[str]"
    quiet: Felt
    felt: Felt
    api: Peak
    edge: Peak
    before: tuple[Held, Held]
    after: tuple[Held, Held]

    @property
    def misses(self) -> list[str]:
        """The aims that were not met."""
        found = {
            "slow": self.felt.percentile_99 > SLOWER * self.quiet.percentile_99,
            "failures": self.felt.failed > 0,
            "memory": self.api.memory > MEMORY,
            "memory left": any(now.memory > then.memory + LEFT for now, then in self._pairs()),
            "children": any(now.children > then.children for now, then in self._pairs()),
            "descriptors": any(now.descriptors > then.descriptors + KEPT for now, then in self._pairs()),
            "no attack": not self.answers,
        }
        return [aim for aim, missed in found.items() if missed]

    @property
    def step(self) -> float:
        """The longest of both event loops, in seconds of the processor."""
        return max(self.api.step, self.edge.step)

    def _pairs(self) -> list[tuple[Held, Held]]:
        return list(zip(self.after, self.before, strict=True))

    def __str__(self) -> str:
        answers = ", ".join(f"{count} x {what}" for what, count in self.answers.most_common(6))
        descriptors = "+".join(f"{then.descriptors}>{now.descriptors}" for now, then in self._pairs())
        left = "+".join(megabytes(now.memory - then.memory) for now, then in self._pairs())
        missed = f"  MISSED {', '.join(self.misses)}" if self.misses else ""
        return (
            f"{self.name:22}{self.felt.percentile_99 * 1000:6.0f} ms"
            f"{self.felt.percentile_99 / self.quiet.percentile_99:9.1f}{self.felt.longest:7.1f} s{self.felt.failed:8}"
            f"{self.step * 1000:9.0f}{megabytes(self.api.memory):>8}{megabytes(self.edge.memory):>9}{left:>9}"
            f"{self.api.children:10}"
            f"{megabytes(self.api.children_memory):>10}{descriptors:>13}  {answers}{missed}"
        )
