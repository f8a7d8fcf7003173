"""What parameters are called everywhere, in a sentence."""

from collections.abc import Mapping

from api_server.web.routes import Route

_MEANINGS: Mapping[str, str] = {
    "page": "Number of the page, from 1 on.",
    "per_page": "Items on a page; more than 100 are 100.",
    "pagination": "`keyset` walks long lists in equal time, by the `Link` header; else pages are counted.",
    "cursor": "Where the page begins, from the `Link` header of the page before; with `pagination=keyset`.",
    "order_by": "By what the list is ordered.",
    "sort": "`asc` or `desc`.",
    "search": "Part of what is looked for.",
    "access_level": "10 Guest, 15 Planner, 20 Reporter, 30 Developer, 40 Maintainer, 50 Owner.",
    "sha": "The commit's SHA, or where that is allowed the name of a branch or tag.",
    "ref": "Name of a branch or tag.",
    "merge_request_iid": "Number of the merge request within its project.",
    "mirror_branch_regex": "Which branches are pushed; from tier premium on, without `only_protected_branches`.",
    "member_role_id": "A role that administrators have made; from tier ultimate on.",
    "expires_at": "Last day, as `2027-01-31`.",
    "visibility": "Who sees it: `private` members, `internal` all who are signed in, `public` everybody.",
    "created_after": "Nothing that is older, ISO 8601.",
    "created_before": "Nothing that is newer, ISO 8601.",
    "updated_after": "Nothing that was changed earlier, ISO 8601.",
    "updated_before": "Nothing that was changed later, ISO 8601.",
}


def meaning(name: str, route: Route | None) -> str:
    """What `name` means to `route`; empty where the name says it."""
    if name == "id" and route is not None and route.access.who in ("project", "group"):
        return f"ID of the {route.access.who}, or its full path, percent-encoded: `group%2Fapp`."
    return _MEANINGS.get(name, "")
