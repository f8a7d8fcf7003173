"""Asks a service, and keeps what was said: for the description, with another address and without secrets."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

#: What a service is called in examples.
ADDRESS = "https://forgelet.example.org"
_SECRET = re.compile(r"\b(flpat|fljob|flso|flptt|glrt)-[\w-]{6,}")


class Recorder:
    """`examples` are by operation: what was sent as JSON (null without a body), the status, and the JSON answered."""

    def __init__(self, api_url: str, url: str) -> None:
        self._api_url = api_url
        self._url = url
        self.examples: dict[str, dict[str, Any]] = {}
        described = self._ask("GET", "/openapi.json", {}, None)[1]
        self._operations = {
            (method.upper(), path): operation["operationId"]
            for path, item in described["paths"].items()
            for method, operation in item.items()
        }

    def ask(
        self,
        token: Mapping[str, str],
        method: str,
        path: str,
        body: Any = None,
        *,
        keep: bool = True,
        query: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Any:
        """What `method` of `path`, with `values` for the parameters in it, answers; kept as the operation's example.
        Exits where that is no success."""
        filled = re.sub(r"{(\w+)}", lambda name: quote(str(values[name[1]]), safe=""), path)
        address = filled + (f"?{urlencode(query)}" if query else "")
        status, answer = self._ask(method, address, token, body)
        if keep:
            told = {"status": status, "request": self._shown(body), "response": self._shown(answer)}
            self.examples[self._operations[method, path]] = told
        return answer

    def _ask(self, method: str, address: str, headers: Mapping[str, str], body: Any) -> tuple[int, Any]:
        text = isinstance(body, str)
        sent = body.encode() if text else None if body is None else json.dumps(body).encode()
        told = {"Content-Type": "text/plain" if text else "application/json", **headers}
        request = urllib.request.Request(self._api_url + address, sent, told, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                found = answer.read().decode()
                is_json = answer.headers.get_content_type() == "application/json"
                return answer.status, json.loads(found) if is_json else found or None
        except urllib.error.HTTPError as refusal:
            raise SystemExit(f"{method} {address}: {refusal.code} {refusal.read().decode()}") from None

    def _shown(self, value: Any) -> Any:
        text = json.dumps(value).replace(self._url, ADDRESS)
        host = urlsplit(self._url).hostname or ""
        text = text.replace(f'"{host}"', '"192.0.2.1"').replace(host, ADDRESS.removeprefix("https://"))
        return json.loads(_SECRET.sub(r"\1-0123456789abcdefghij", text))
