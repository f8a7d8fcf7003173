"""Reads PostgreSQL's `pg_node_tree`: a statement as the server has understood it, with every type and function."""

import re
from typing import Any

import attrs

_TOKEN = re.compile(r'[{}()\[\]]|"(?:[^"\\]|\\.)*"|(?:[^\s{}()\[\]"\\]|\\.)+', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@attrs.frozen
class Node:
    """`{KIND :field value ...}`. Values are nodes, lists, texts, and None for `<>`."""

    kind: str
    fields: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def constant(self) -> bytes:
        """The bytes of a constant."""
        return bytes(int(one) % 256 for one in self.fields["constvalue"])

    def number(self, name: str) -> int:
        return int(self.fields[name])

    def list(self, name: str) -> list[Any]:
        return self.fields[name] or []


def read(text: str) -> Any:
    """The tree of the text: a node, or a list of nodes."""
    tokens = _TOKEN.findall(text)
    tokens.reverse()
    return _value(tokens)


def _value(tokens: list[str]) -> Any:
    token = tokens.pop()
    if token == "{":
        return _node(tokens)
    if token == "(":
        return _until(tokens, ")")
    if token == "[":
        return _until(tokens, "]")
    if token == "<>":
        return None
    return _ESCAPED.sub(r"\1", token[1:-1] if token[0] == '"' else token)


def _node(tokens: list[str]) -> Node:
    kind, fields = tokens.pop(), {}
    while (token := tokens.pop()) != "}":
        values = []
        while tokens[-1] != "}" and tokens[-1][0] != ":":
            values.append(_value(tokens))
        # a constant is its length and its bytes
        fields[token[1:]] = values[-1] if values else None
    return Node(kind, fields)


def _until(tokens: list[str], end: str) -> list[Any]:
    found = []
    while tokens[-1] != end:
        found.append(_value(tokens))
    tokens.pop()
    return found
