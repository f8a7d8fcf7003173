"""What each status is called, on status lines and in bodies: what aiohttp says changes with Python's version."""

from collections.abc import Mapping

from aiohttp import web

#: GitLab's words, which are those of RFC 2616.
REASONS: Mapping[int, str] = {
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    407: "Proxy Authentication Required",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    412: "Precondition Failed",
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    415: "Unsupported Media Type",
    416: "Requested Range Not Satisfiable",
    417: "Expectation Failed",
    421: "Misdirected Request",
    422: "Unprocessable Entity",
    424: "Failed Dependency",
    426: "Upgrade Required",
    428: "Precondition Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    451: "Unavailable For Legal Reasons",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    506: "Variant Also Negotiates",
    507: "Insufficient Storage",
    510: "Not Extended",
    511: "Network Authentication Required",
}


def reword(response: web.StreamResponse) -> None:
    """Puts our words where aiohttp has put its own; words that a handler has chosen stay."""
    ours = REASONS.get(response.status)
    if ours is None or response.prepared:
        return
    usual = web.Response(status=response.status).reason
    if isinstance(response, web.Response) and response.text == f"{response.status}: {usual}":
        response.text = f"{response.status}: {ours}"
    if response.reason == usual:
        response.set_status(response.status, ours)
