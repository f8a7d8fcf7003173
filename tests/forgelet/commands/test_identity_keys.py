"""`forgelet identity-key`, beside a running server."""

import datetime
from typing import Any

from tests.forgelet.commands.running import answer, run
from tests.support.forge import Forge, identity_key

EVENTS = """
    SELECT author_name LIKE '%% (command line)' AS by_command, entity_type, target_type, target_details,
        details ->> 'custom_message' AS message
    FROM audit_events WHERE event_type = 'identity_key_rotated' ORDER BY id
"""


async def kids(forge: Forge) -> list[str]:
    body = (await forge.anonymous.get(f"{forge.base}/oauth/discovery/keys", expect=200)).body
    return [key["kid"] for key in body["keys"]]


async def test_keys_are_listed_replaced_and_revoked(new_forge: Any) -> None:
    async with new_forge() as forge:
        old = identity_key().kid
        begin = {"kid": old, "use": "signs", "signs_from": "1970-01-01T00:00:00+00:00"}
        assert answer(await run(forge, "identity-key", "list", "--json")) == [begin]

        new = (await run(forge, "identity-key", "rotate")).stdout.strip()
        next_key, first = answer(await run(forge, "identity-key", "list", "--json"))
        wait = datetime.datetime.fromisoformat(next_key.pop("signs_from")) - datetime.datetime.now(
            datetime.UTC
        )
        assert datetime.timedelta(minutes=50) < wait <= datetime.timedelta(hours=1)
        assert (next_key, first) == ({"kid": new, "use": "signs later"}, begin)

        refused = await run(forge, "identity-key", "rotate", "--revoke", given="n\n")
        assert (refused.exit_code, len(await kids(forge))) == (1, 2)
        made = answer(await run(forge, "identity-key", "rotate", "--revoke", "--yes", "--json"))
        assert made == {"kid": made["kid"], "revoked": True}
        (only,) = answer(await run(forge, "identity-key", "list", "--json"))
        assert (only["kid"], only["use"]) == (made["kid"], "signs")

        events = await forge.database.rows(EVENTS)
        assert [tuple(event) for event in events] == [
            (True, "Service::Audit::InstanceScope", "Ci::IdentityKey", kid, message)
            for kid, message in [
                (new, f"Made {new} the next key for identity tokens"),
                (made["kid"], f"Made {made['kid']} the key for identity tokens and revoked all others"),
            ]
        ]


async def test_a_key_that_was_replaced_verifies(new_forge: Any) -> None:
    async with new_forge() as forge:
        await run(forge, "identity-key", "rotate")
        await forge.execute("UPDATE identity_keys SET signs_from = signs_from - interval '1 hour'")
        listed = answer(await run(forge, "identity-key", "list", "--json"))
        assert [key["use"] for key in listed] == ["signs", "verifies"]
        assert [key["kid"] for key in listed] == await kids(forge)
