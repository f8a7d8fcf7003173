"""A folder with files, keys and programs that operators may name by mistake."""

from pathlib import Path

from tests.support.certificates import key_and_certificate


def furnish(place: Path) -> None:
    """Create the files that the table of mistakes needs."""
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
