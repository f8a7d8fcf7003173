"""The service's own key pairs, and the host keys that users pin."""

import subprocess
from pathlib import Path

import pytest

from api_server.git.remote.ssh_keys import InvalidHostKeysError, make_key_pair, parse_host_keys

# With a plus, which forms decode to a space.
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ4OVc1gNaZmxSmVaOhaLwuv2c+wAixj/uqmbk4ps7I6"


def test_a_pair_is_ed25519_and_belongs_together(tmp_path: Path) -> None:
    pair = make_key_pair("mirror@forge.example.org")
    key_type, key, comment = pair.public.split()
    assert (key_type, comment) == ("ssh-ed25519", "mirror@forge.example.org")
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text(pair.private)
    try:
        shown = subprocess.run(
            ["ssh-keygen", "-y", "-f", str(file)], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    assert shown.stdout.split()[:2] == [key_type, key]
    assert "PRIVATE" not in repr(pair)


@pytest.mark.parametrize(
    ("entry", "port", "line"),
    [
        (KEY, None, f"h.example.org {KEY}"),
        (KEY, 22, f"h.example.org {KEY}"),
        (f"{KEY} root@h", 2222, f"[h.example.org]:2222 {KEY}"),
        (f"other.example.org,192.0.2.1 {KEY}\n", 22, f"other.example.org,192.0.2.1 {KEY}"),
        (f"|1|aGFzaA==|aGFzaA== {KEY} note", 22, f"|1|aGFzaA==|aGFzaA== {KEY}"),
        (KEY.replace("+", " "), 22, f"h.example.org {KEY}"),
        (KEY.replace("+", " ") + " root@h", 22, f"h.example.org {KEY}"),
    ],
)
def test_keys_become_known_hosts_lines(entry: str, port: int | None, line: str) -> None:
    assert [key.line for key in parse_host_keys([entry], "h.example.org", port)] == [line]


def test_the_fingerprint_is_the_one_that_ssh_keygen_prints(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(KEY)
    command = ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    (key,) = parse_host_keys([KEY], "h", None)
    assert shown.split()[1] == key.fingerprint_sha256


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "nonsense",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        f"h\nssh {KEY}",
        f"@revoked h {KEY}",
        f"-x {KEY}",
        KEY[:-4],
    ],
)
def test_one_bad_key_refuses_all(entry: str) -> None:
    with pytest.raises(InvalidHostKeysError, match=r"^Invalid SSH host key\(s\): "):
        parse_host_keys([KEY, entry], "h", None)


def test_eleven_keys_are_too_many() -> None:
    with pytest.raises(InvalidHostKeysError, match=r"^too many host keys \(maximum is 10\)$"):
        parse_host_keys([KEY] * 11, "h", None)


@pytest.mark.parametrize("comment", ["", " host"])
def test_pluses_at_the_end_and_beside_each_other_survive_a_form(comment: str) -> None:
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIOHUtQl/FMAFHZEC9oI8aQkyelbM8+d7yJabujiHmhK+"
    sent = f"ssh-ed25519 {key}{comment}".replace("+", " ")
    (parsed,) = parse_host_keys([sent], "h.example.org", 22)
    assert parsed.line == f"h.example.org ssh-ed25519 {key}"
