"""What users see of what git and a target have said."""

from pathlib import Path

from api_server.git.remote.access import Access, Remote, RemoteGit


async def test_neither_credentials_nor_control_characters_are_shown() -> None:
    remote = Remote("https://example.org/x.git", user="alice", password="hunter2")
    git = RemoteGit(remote, Access(remote.url, (), {}, Path("/nonexistent")), time_limit=1)
    said = "remote: \x1b[31mhunter2\x07 is \u202ewrong\r\nfor alice\n"
    assert git.clean(said) == "remote: [31m***** is wrong\nfor *****"
