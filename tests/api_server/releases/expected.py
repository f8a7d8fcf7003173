"""What GitLab shows of a release, key by key."""

from typing import Any

from tests.api_server.releases.conftest import Scene

_SOURCES = ("zip", "tar.gz", "tar.bz2", "tar")


def sources(scene: Scene, tag: str) -> list[dict[str, str]]:
    name = f"{scene.project['path']}-{tag.replace('/', '-')}"
    return [{"format": one, "url": f"{scene.web}/-/archive/{tag}/{name}.{one}"} for one in _SOURCES]


def _pages(scene: Scene, tag: str) -> dict[str, str]:
    web = scene.web
    filters = f"release_tag={tag}&scope=all&state="
    return {
        "closed_issues_url": f"{web}/-/issues?{filters}closed",
        "closed_merge_requests_url": f"{web}/-/merge_requests?{filters}closed",
        "edit_url": f"{web}/-/releases/{tag}/edit",
        "merged_merge_requests_url": f"{web}/-/merge_requests?{filters}merged",
        "opened_issues_url": f"{web}/-/issues?{filters}opened",
        "opened_merge_requests_url": f"{web}/-/merge_requests?{filters}opened",
        "self": f"{web}/-/releases/{tag}",
    }


def link(link_id: int, name: str, url: str, **values: Any) -> dict[str, Any]:
    return {"id": link_id, "name": name, "url": url, "direct_asset_url": url, "link_type": "other"} | values


def expected_release(scene: Scene, tag: str, links: list[Any], **values: Any) -> dict[str, Any]:
    """In GitLab's order of keys."""
    keys = ("created_at", "released_at", "upcoming_release", "author", "commit", "commit_path", "tag_path")
    given = {"tag_name": tag, "upcoming_release": False} | values
    return {
        **{key: given[key] for key in ("name", "tag_name", "description", *keys)},
        "assets": {"count": 4 + len(links), "sources": sources(scene, tag), "links": links},
        "evidences": [],
        "_links": _pages(scene, tag),
    }
