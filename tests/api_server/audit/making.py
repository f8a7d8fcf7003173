"""Making what tests refer to by its name: `{project}` of a path is what `make_project` makes."""

import re
from typing import Any

from tests.support.forge import Forge

_NAME = re.compile(r"{(\w+)}")


class Making:
    """Everything is made once, by `root`, and belongs to what is made under the name before it."""

    def __init__(self, forge: Forge) -> None:
        self.forge = forge
        self._made: dict[str, Any] = {}

    async def get(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = await getattr(self, f"make_{name}")()
        return self._made[name]

    async def fill(self, wanted: Any) -> Any:
        """`wanted` with things in the place of their names; a text that is one name is the thing itself."""
        if isinstance(wanted, dict):
            return {key: await self.fill(value) for key, value in wanted.items()}
        if isinstance(wanted, list):
            return [await self.fill(value) for value in wanted]
        if not isinstance(wanted, str):
            return wanted
        if (only := _NAME.fullmatch(wanted)) is not None:
            return await self.get(only[1])
        for name in _NAME.findall(wanted):
            wanted = wanted.replace(f"{{{name}}}", str(await self.get(name)))
        return wanted

    async def post(self, path: str, **values: Any) -> Any:
        """The answer to a request of root's that succeeds."""
        answer = await self.forge.root.post(await self.fill(path), await self.fill(values))
        assert answer.status in (200, 201, 204), (path, answer)
        return answer.body
