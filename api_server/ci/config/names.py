"""Names that are derived from other names: slugs of refs and environments, the tier of an environment."""

import hashlib
import re

#: Characters that a job, an environment or a resource group may have in its name.
MAX_NAME = 255
MAX_SLUG = 63
MAX_ENVIRONMENT_SLUG = 24

#: First match wins; GitLab's guess when a job names no `deployment_tier`.
_TIERS = (
    ("development", r"(?i)(dev|review|trunk)"),
    ("testing", r"(?i)(test|tst|int|ac(ce|)pt|qa|qc|control|quality)"),
    ("staging", r"(?i)(st(a|)g|mod(e|)l|pre|demo|non)"),
    ("production", r"(?i)(pr(o|)d|live)"),
)


def slug(text: str) -> str:
    """`text` as part of a host name: lower case, digits, dashes, at most 63 long (`CI_COMMIT_REF_SLUG`)."""
    return re.sub(r"[^a-z0-9]", "-", text.lower())[:MAX_SLUG].strip("-")


def environment_slug(name: str) -> str:
    """A host name's part of at most 24 characters; names that do not fit end in a digest."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())
    if not plain[:1].isalpha():
        plain = re.sub(r"-+", "-", f"env-{plain}")
    if plain == name and len(plain) <= MAX_ENVIRONMENT_SLUG and not plain.endswith("-"):
        return plain
    return f"{plain[: MAX_ENVIRONMENT_SLUG - 7].rstrip('-')}-{_suffix(name)}"


def _suffix(name: str) -> str:
    """The last six digits, to base 36, of the name's SHA-256."""
    number, digits = int.from_bytes(hashlib.sha256(name.encode()).digest()), ""
    while len(digits) < 6:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def tier(name: str) -> str:
    """`production`, `staging`, `testing`, `development` or `other`."""
    return next((found for found, pattern in _TIERS if re.search(pattern, name)), "other")
