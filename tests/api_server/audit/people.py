"""What happens to tokens and accounts by themselves, as `table.py` lists it."""

from tests.api_server.audit.change import Change

_TOKEN = {"name": "n", "scopes": ["api"]}
PEOPLE = [
    Change(
        "POST /user/personal_access_tokens",
        "personal_access_token_created",
        {"name": "n", "scopes": ["self_rotate"]},
        by="caller",
    ),
    *(
        change
        for kind in ("group", "project")
        for tokens, made, gone in [
            (
                f"/{kind}s/{{{kind}}}/access_tokens",
                f"{kind}_access_token_created",
                f"{kind}_access_token_deleted",
            )
        ]
        for change in [
            Change(f"POST {tokens}", f"{made} member_created user_created", _TOKEN),
            Change(
                f"DELETE {tokens}/{{{kind}_access_token}}",
                f"{gone} member_destroyed user_destroyed",
            ),
            Change(f"POST {tokens}/{{{kind}_access_token}}/rotate", f"{made} {gone}"),
            Change(f"POST {tokens}/self/rotate", f"{made} {gone}", by=f"{kind}_bot"),
        ]
    ),
]
