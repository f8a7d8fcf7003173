"""How long browsers and edges may keep a static object, and what it is filed under for purges."""

from api_server.code.refs import ref_key
from api_server.git.references import Resolved
from api_server.namespaces.resources import Project
from api_server.outbound import edges

#: Seconds for what is named by a branch or tag, which can move (the edge learns of moves by purges), or by a part of a
#: SHA, which can become the name of a branch or of two commits.
MOVING_SECONDS = 60
#: Seconds for what is named by its full commit SHA.
FIXED_SECONDS = 3600
#: How long an edge may keep the latter; purges take it away when its project is closed.
FIXED_AT_EDGE_SECONDS = 86_400


def kept(project: Project, ref: Resolved) -> dict[str, str]:
    """`Cache-Control` for all, `CDN-Cache-Control` (RFC 9213) for the edge, `Surrogate-Key` for purges, of what is at
    `ref`.

    What strangers may not read is the user's alone: an edge may store it, but asks again for each request.
    """
    headers = {"Surrogate-Key": f"{edges.project_key(project.id)} {ref_key(project.id, ref.name)}"}
    if not project.shows_repository_to_everybody:
        return headers | {
            "Cache-Control": "private, max-age=0, must-revalidate",
            "CDN-Cache-Control": "private, max-age=0, must-revalidate",
        }
    lifetime = FIXED_SECONDS if ref.is_fixed else MOVING_SECONDS
    at_edge = FIXED_AT_EDGE_SECONDS if ref.is_fixed else MOVING_SECONDS
    return headers | {
        "Cache-Control": f"public, max-age={lifetime}, must-revalidate, stale-while-revalidate=60, "
        f"stale-if-error=300, s-maxage={MOVING_SECONDS}",
        "CDN-Cache-Control": f"max-age={at_edge}",
    }
