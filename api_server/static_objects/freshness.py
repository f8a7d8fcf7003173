"""How long browsers and edges may keep a static object, and what it is filed under for purges."""

import attrs

from api_server.code.refs import ref_key
from api_server.outbound import edges

#: Seconds for what is named by a branch or tag, which can move; the edge learns of moves by purges.
MOVING_SECONDS = 60
#: Seconds for what is named by its full commit SHA.
FIXED_SECONDS = 3600
#: How long an edge may keep the latter; purges take it away when its project is closed.
FIXED_AT_EDGE_SECONDS = 86_400


@attrs.frozen
class Kept:
    """What the headers depend on: who may read it, and whether its ref can move."""

    project_id: int
    public: bool
    ref: str
    fixed: bool

    @property
    def headers(self) -> dict[str, str]:
        """`Cache-Control` for all, `CDN-Cache-Control` (RFC 9213) for the edge, `Surrogate-Key` for purges.

        What is not public is the user's alone: an edge may store it, but asks again for each request.
        """
        headers = {
            "Surrogate-Key": f"{edges.project_key(self.project_id)} {ref_key(self.project_id, self.ref)}"
        }
        if not self.public:
            return headers | {
                "Cache-Control": "private, max-age=0, must-revalidate",
                "CDN-Cache-Control": "private, max-age=0, must-revalidate",
            }
        lifetime = FIXED_SECONDS if self.fixed else MOVING_SECONDS
        at_edge = FIXED_AT_EDGE_SECONDS if self.fixed else MOVING_SECONDS
        return headers | {
            "Cache-Control": f"public, max-age={lifetime}, must-revalidate, stale-while-revalidate=60, "
            f"stale-if-error=300, s-maxage={MOVING_SECONDS}",
            "CDN-Cache-Control": f"max-age={at_edge}",
        }
