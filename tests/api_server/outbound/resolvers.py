"""A resolver whose answers a test defines, also different ones over time."""

import socket
from collections.abc import Sequence

from aiohttp.abc import AbstractResolver, ResolveResult


class ScriptedResolver(AbstractResolver):
    """A resolver with a sequence of answers for each name, of which the last one is repeated. Unknown names do not
    resolve."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.answers = {f"{name}.example.org": list(sequence) for name, sequence in answers.items()}
        self.calls: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        assert family == socket.AF_UNSPEC
        self.calls.append(host)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers = self.answers[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Do nothing: no resource is open."""
