"""The mistakes that operators make: what is given to which programs, and the sentence that they say.

`{place}` is the folder that `furnish` has filled, `{port}` one that is taken, `{database}` and so on are URLs.
"""

from collections.abc import Mapping
from pathlib import Path

import attrs

from tests.support.certificates import key_and_certificate


@attrs.frozen
class Mistaken:
    """One mistake; `program` is `api`, `edge`, `commands` (which take no flags), or both of the former two."""

    program: str
    flags: str
    sentence: str
    environment: Mapping[str, str | None] = attrs.field(factory=dict, kw_only=True)
    file: str | None = attrs.field(default=None, kw_only=True)
    unprivileged: bool = attrs.field(default=False, kw_only=True)

    def __str__(self) -> str:
        return " ".join(
            filter(None, [self.program, self.flags, *map("=".join, _texts(self.environment)), self.file])
        )


def _texts(environment: Mapping[str, str | None]) -> list[tuple[str, str]]:
    return [(name, value or "") for name, value in environment.items()]


def variable(program: str, name: str, value: str | None, sentence: str, *, flags: str = "") -> Mistaken:
    return Mistaken(program, flags, sentence, environment={name: value})


def file(program: str, text: str, sentence: str) -> Mistaken:
    return Mistaken(program, "", sentence, file=text)


def furnish(place: Path) -> None:
    """What the table needs in its folder."""
    (place / "file").write_text("a file\n")
    (place / "bytes").write_bytes(b"\xff\n")
    (place / "blank").write_text(" \n")
    (place / "short").write_text("1234567\n")
    for name in ("one", "other"):
        key, certificate = key_and_certificate()
        (place / f"{name}.key").write_bytes(key)
        (place / f"{name}.pem").write_bytes(certificate)
    for name, said in (("old", "git version 2.35.8"), ("odd", "hello")):
        (place / name).mkdir()
        git = place / name / "git"
        git.write_text(f"#!/bin/sh\necho {said}\n")
        git.chmod(0o755)
    (place / "empty").mkdir()
    (place / "odd-key/secret_key").mkdir(parents=True)
    (place / "corrupt").mkdir()
    (place / "corrupt/secret_key").write_text("00\n")
