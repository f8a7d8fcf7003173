"""Mail to people who never asked for it."""

from collections import Counter
from itertools import count

from scripts.abuse.place import Place, again_and_again, session


async def invitations(place: Place, answers: "Counter[str]") -> None:
    """Invitations to new addresses, and confirmations of addresses that are a stranger's."""
    numbers = count()
    async with session(place.as_attacker) as http:

        async def invite(_number: int) -> str:
            address = f"nobody{next(numbers)}@example.org"
            body = {"email": address, "access_level": 10}
            async with http.post(f"{place.project(place.mine)}/invitations", json=body) as answer:
                if answer.status != 201:
                    return str(answer.status)
                return str((await answer.json())["status"])

        async def claim(_number: int) -> str:
            body = {"email": f"somebody{next(numbers)}@example.org"}
            async with http.post(f"{place.api_url}/api/v4/user/emails", json=body) as answer:
                return f"address {answer.status}"

        async def both(number: int) -> str:
            return await (invite if number % 2 else claim)(number)

        await again_and_again(8, both, answers)
