"""What a played job leaves, packed as its CI file wants it."""

import gzip
import io
import zipfile
from typing import Any

from forgelet.runner.protocol import Upload, uploads

FILES = {"dist/app.js": "app", "dist/app.map": "map", "report.xml": "<testsuite/>", "notes.txt": "n"}


def of(wanted: list[dict[str, Any]] | None, *, succeeds: bool = True) -> list[Upload]:
    return list(uploads(wanted, FILES, succeeds=succeeds))


def names(upload: Upload) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(upload.content)) as archive:
        return archive.namelist()


def archive(**values: Any) -> dict[str, Any]:
    return {"artifact_type": "archive", "artifact_format": "zip", "when": "on_success"} | values


def test_everything_goes_into_an_archive_where_the_job_names_nothing() -> None:
    (one,) = of(None)
    assert names(one) == list(FILES)
    assert (one.filename, one.said) == (
        "artifacts.zip",
        {"artifact_type": "archive", "artifact_format": "zip"},
    )
    assert of(None) == [one]  # to the byte, so that the same upload again is no conflict


def test_paths_folders_and_exclusions() -> None:
    (one,) = of([archive(paths=["dist/", "*.xml"], exclude=["**/*.map"], name="app", expire_in="1 day")])
    assert (one.filename, names(one)) == ("app.zip", ["dist/app.js", "report.xml"])
    assert one.said["expire_in"] == "1 day"
    assert of([archive(paths=["build"])]) == []
    assert names(of([archive(untracked=True)])[0]) == list(FILES)


def test_when() -> None:
    wanted = [
        archive(paths=["dist"]),
        archive(paths=["notes.txt"], when="on_failure"),
        {
            "artifact_type": "junit",
            "artifact_format": "gzip",
            "paths": ["*.xml"],
            "when": "always",
            "name": "j.xml",
        },
    ]
    good, junit = of(wanted)
    assert names(good) == ["dist/app.js", "dist/app.map"]
    assert gzip.decompress(junit.content) == b"<testsuite/>"
    assert (junit.filename, junit.said["artifact_type"]) == ("j.xml.gz", "junit")
    bad, again = of(wanted, succeeds=False)
    assert names(bad) == ["notes.txt"]
    assert again == junit
