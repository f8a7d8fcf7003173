"""Whether the object store that a setting names can be used at all, before anything depends on it."""

import importlib.util
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from common.mistakes import Mistake, usable_folder

#: Each stands for credentials; without one only the machine itself could give them, as machines of AWS do.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_PATIENCE = "5s"


def check_object_store(title: str, url: str) -> None:
    """Raises `Mistake` where `url` (`file:///folder`, `s3://bucket/prefix`) names no folder that can be written, or S3
    without credentials; that a store does not answer today is no mistake."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        usable_folder(title, Path(unquote(parts.path)))
        return
    require_obstore(title)
    if not _has_credentials(url):
        raise Mistake(
            f"{title} has no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
            " or run where the machine has a role"
        )


def require_obstore(title: str) -> None:
    """Raises `Mistake` where the Python package is not installed that speaks with object stores."""
    if importlib.util.find_spec("obstore") is None:
        raise Mistake(f"{title} needs a Python package that is not installed: pip install 'forgelet[s3]'")


def _has_credentials(url: str) -> bool:
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if bool(key) != bool(secret):
        return False
    return any(map(os.environ.get, _CREDENTIALS)) or _answers(url)


def _answers(url: str) -> bool:
    # Five megabytes that few processes need.
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        store = from_url(url, client_options={"timeout": _PATIENCE}, retry_config={"max_retries": 0})
        obstore.list_with_delimiter(store, prefix="none")
    except BaseError:
        return False
    return True
