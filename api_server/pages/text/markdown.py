"""GitLab Flavored Markdown as HTML that is safe to show.

cmark parses the text, and nh3 removes everything that is not allowed. Then code gets its colours, and one pass over the
result gives links and images their addresses, and headings their anchors. All of it runs in a child process
(`child.py`), because some texts are made to take long, or to break libraries that are written in C.
"""

import html
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote, unquote

import attrs
import nh3
from cmarkgfm import cmark
from cmarkgfm.cmark import Options

from api_server.pages.text import colours
from api_server.pages.text.colours import Budget

_OPTIONS = Options.CMARK_OPT_UNSAFE | Options.CMARK_OPT_GITHUB_PRE_LANG | Options.CMARK_OPT_FOOTNOTES
_EXTENSIONS = ("table", "autolink", "strikethrough", "tasklist")
#: Maximum depth of nested elements. nh3 takes quadratic time for them, and browsers accept no more than 512.
MAX_NESTED = 100
#: Elements that end by themselves, and therefore do not count as nested.
_UNNESTED = frozenset([
    "a", "p", "li", "dt", "dd", "tr", "td", "th", "thead", "tbody", "tfoot", "rt", "rp", "br", "hr", "img", "input",
    "wbr", "area", "base", "col", "embed", "link", "meta", "param", "source", "track",
])  # fmt: skip
_ELEMENT = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")

_TAGS = frozenset([
    "h1", "h2", "h3", "h4", "h5", "h6", "p", "br", "hr", "b", "i", "em", "strong", "tt", "code", "pre", "kbd",
    "samp", "var", "q", "cite", "dfn", "abbr", "small", "mark", "ins", "del", "s", "strike", "sub", "sup",
    "blockquote", "ul", "ol", "li", "dl", "dt", "dd", "table", "caption", "thead", "tbody", "tfoot", "tr", "td",
    "th", "a", "img", "div", "span", "section", "details", "summary", "figure", "figcaption", "ruby", "rt", "rp",
    "wbr", "input",
])  # fmt: skip
#: Elements that are removed with their content, because that is not text of the document.
_REMOVED = frozenset([
    "script", "style", "title", "template", "textarea", "select", "option", "iframe", "object", "embed", "applet",
    "noscript", "noembed", "noframes", "svg", "math", "audio", "video", "canvas",
])  # fmt: skip
_ATTRIBUTES = {
    "*": {"id"},
    "a": {"href", "name", "title"},
    "img": {"src", "alt", "title", "width", "height"},
    "input": {"checked"},
    "pre": {"lang"},
    "ol": {"start"},
    "details": {"open"},
    "abbr": {"title"},
}
_ALIGNED = {"left", "center", "right"}
_VALUES = {
    **{tag: {"align": _ALIGNED} for tag in ("td", "th", "p", "div", "h1", "h2", "h3", "h4", "h5", "h6")},
    "input": {"type": {"checkbox"}},
}
_SCHEMES = {"http", "https", "mailto"}
#: The prefix of ids that people chose. No id and no name of ours begins with it.
_ID_PREFIX = "user-content-"
_CLEANER = nh3.Cleaner(
    tags=set(_TAGS),
    clean_content_tags=set(_REMOVED),
    attributes=_ATTRIBUTES,
    tag_attribute_values=_VALUES,
    url_schemes=_SCHEMES,
    id_prefix=_ID_PREFIX,
    link_rel=None,
)

#: A tag as nh3 writes it: attributes are in double quotes, and texts contain no `<`.
_TAG = re.compile(r'<(/?)([a-z0-9]+)((?:[^"<>]++|"[^"]*+")*+)>')
_ATTRIBUTE = re.compile(r'([a-z]+)="([^"]*)"')
_FENCE = re.compile(r'<pre lang="([^"]*)"><code>([^<]*)</code></pre>')
#: Elements in whose text nothing is taken for a reference.
_LITERAL = frozenset(["a", "code", "pre", "tt", "kbd", "samp"])
#: The elements that headings become. They are one level lower, because the `h1` of a page is the page's own.
_HEADINGS = {"h1": "h2", "h2": "h3", "h3": "h4", "h4": "h5", "h5": "h6", "h6": "h6"}
#: Elements that may have an anchor as their first child.
_ANCHORED = frozenset(
    ["p", "li", "div", "span", "td", "th", "dd", "dt", "sup", "sub", "blockquote", "section", *_HEADINGS]
)

_REFERENCE = re.compile(
    r"(?<![\w/!@.:-])(?:!(?P<merge_request>[1-9][0-9]{0,9})"
    r"|@(?P<user>[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_-])?)|(?P<commit>[0-9a-f]{7,40}))(?![\w/-]|\.\w)"
)
#: Maximum number of possible references in one text. Further ones stay plain text.
MAX_REFERENCES = 300
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_OWN_RAW = re.compile(r"(.+?)/-/raw/(.+)", re.DOTALL)
_SIZE = re.compile(r"[0-9]{1,4}%?")
_FRONT_MATTER_LIMIT = 64 * 1024


@attrs.frozen
class TextContext:
    """The place of a text. `project` is a full path, or "" outside of projects. Relative links start in `folder` at
    `ref`. `base_url` is that of the service."""

    base_url: str
    project: str = ""
    ref: str = ""
    folder: str = ""


@attrs.frozen
class Reference:
    """A possible reference. `kind` is `merge_request`, `user` or `commit`. `text` is as it was written, `name` is the
    text without its sign."""

    kind: str
    name: str
    text: str


#: HTML, or a possible reference: whether it becomes a link depends on the viewer.
Part = str | Reference


class TooNested(Exception):
    """Elements are nested more deeply than in texts for people."""


def to_parts(text: str, context: TextContext, budget: Budget) -> list[Part]:
    """Return the text as HTML in parts. Raise `TooNested`."""
    unsafe = cmark.markdown_to_html_with_extensions(_with_front_matter(text), _OPTIONS, _EXTENSIONS)
    _check_nesting(unsafe)
    safe = _CLEANER.clean(unsafe)
    return _Writer(context).write(_FENCE.sub(lambda fence: _coloured(fence, budget), safe))


def _with_front_matter(text: str) -> str:
    """Return the text with its front matter (the YAML of static sites) as a block of code, as GitLab shows it."""
    if not text.startswith(("---\n", "---\r\n")):
        return text
    head = text[:_FRONT_MATTER_LIMIT]
    end = re.search(r"\n---[ \t]*\r?(?:\n|\Z)", head)
    if end is None or "~~~~" in head[: end.start()]:
        return text
    return f"~~~~yaml{head[3 : end.start()]}\n~~~~\n\n{text[end.end() :]}"


def _check_nesting(unsafe: str) -> None:
    opened: Counter[str] = Counter()
    depth = 0
    for slash, name in _ELEMENT.findall(unsafe):
        if (element := name.lower()) in _UNNESTED:
            continue
        if not slash:
            opened[element] += 1
            depth += 1
            if depth > MAX_NESTED:
                raise TooNested
        elif opened[element]:
            opened[element] -= 1
            depth -= 1


def _coloured(fence: re.Match[str], budget: Budget) -> str:
    source = html.unescape(fence[2])
    coloured = budget.coloured(source, colours.lexer_named(html.unescape(fence[1])))
    return f"<pre><code>{fence[2] if coloured is None else coloured}</code></pre>"


def anchor_of(heading: str) -> str:
    """Return the name by which links reach a heading. It is derived from the heading's text as in GitLab."""
    allowed_text = "".join(character for character in heading.strip().lower() if _in_anchor(character))
    name = re.sub("-+", "-", allowed_text.replace(" ", "-"))
    return f"anchor-{name}" if name.isdigit() else name


def _in_anchor(character: str) -> bool:
    """Return whether the character matches `[\\p{Word}\\- ]`."""
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Pc") or character in "- "


class _Writer:
    """One pass over safe HTML, which writes it as it is shown."""

    def __init__(self, context: TextContext) -> None:
        self._context = context
        self._parts: list[Part] = []
        self._literal = 0
        self._links = 0
        self._references = 0
        self._heading: str | None = None
        self._heading_begins = 0  # the position of its anchor in `_parts`
        self._anchors: Counter[str] = Counter()

    def write(self, safe: str) -> list[Part]:
        end = 0
        for tag in _TAG.finditer(safe):
            self._text(safe[end : tag.start()])
            end = tag.end()
            if tag[1]:
                self._close(tag[2])
            else:
                self._open(tag[2], _attributes(tag[3]))
        self._text(safe[end:])
        return self._parts

    def _text(self, text: str) -> None:
        if self._literal or not text:
            self._parts.append(text)
            return
        end = 0
        for match in _REFERENCE.finditer(text):
            if self._references == MAX_REFERENCES:
                break
            self._references += 1
            kind = match.lastgroup or ""
            self._parts += [text[end : match.start()], Reference(kind, match[kind], match[0])]
            end = match.end()
        self._parts.append(text[end:])

    def _open(self, name: str, attributes: dict[str, str]) -> None:
        self._literal += name in _LITERAL
        anchor = attributes.pop("id", "").removeprefix(_ID_PREFIX)
        if name == "a":
            self._links += 1
            self._parts.append(self._link(attributes, anchor))
        elif name == "img":
            self._parts.append(self._image(attributes))
        elif name == "input":
            self._parts.append(_check_box(attributes))
        else:
            before = (
                '<div class="wide" tabindex="0" role="group" aria-label="Table">' if name == "table" else ""
            )
            tabindex = {"tabindex": "0"} if name == "pre" else {}
            self._parts.append(before + _tag(_HEADINGS.get(name, name), attributes | tabindex))
            if anchor and name in _ANCHORED and not self._links:
                self._parts.append(_tag("a", {"name": anchor}) + "</a>")
            if name in _HEADINGS and self._heading is None:
                self._heading, self._heading_begins = name, len(self._parts)
                self._parts.append("")

    def _close(self, name: str) -> None:
        self._literal -= name in _LITERAL
        self._links -= name == "a"
        if name == self._heading:
            self._end_heading()
        self._parts.append(f"</{_HEADINGS.get(name, name)}>" + ("</div>" if name == "table" else ""))

    def _end_heading(self) -> None:
        """Give the heading its anchor, which depends on its complete text."""
        self._heading = None
        parts = self._parts[self._heading_begins :]
        visible = [part.text if isinstance(part, Reference) else part for part in parts]
        text = html.unescape(_TAG.sub("", "".join(visible)))
        if self._links or not (name := anchor_of(text)):
            return
        self._anchors[name] += 1
        if self._anchors[name] > 1:
            name = f"{name}-{self._anchors[name] - 1}"
        label = f"Link to {text.strip()[:200]}"
        # Links find a `name`, but scripts and labels do not, so it cannot pose as an id of the page.
        link = _tag("a", {"class": "anchor", "name": name, "href": f"#{quote(name)}", "aria-label": label})
        self._parts[self._heading_begins] = f"{link}</a>"

    def _link(self, attributes: dict[str, str], anchor: str) -> str:
        allowed: dict[str, str] = {key: attributes[key] for key in ("title", "name") if key in attributes}
        if anchor:
            allowed["name"] = anchor
        target, is_own = self._target(attributes.get("href", ""))
        if target is not None:
            allowed["href"] = target
            if not is_own:
                allowed["rel"] = "nofollow noopener noreferrer"
        return _tag("a", allowed)

    def _image(self, attributes: dict[str, str]) -> str:
        """Return an image if it is in a repository here, otherwise a link to it: pages load nothing from elsewhere."""
        source = attributes.get("src", "")
        name = unquote(posixpath.basename(re.split("[?#]", source)[0]))[:200]
        text = attributes.get("alt", "").strip() or name or "image"
        if (address := self._image_address(source)) is not None:
            sizes = {
                key: attributes[key]
                for key in ("width", "height")
                if _SIZE.fullmatch(attributes.get(key, ""))
            }
            title = {"title": attributes["title"]} if "title" in attributes else {}
            return _tag("img", {"src": address, "alt": text, "loading": "lazy"} | title | sizes)
        target, is_own = self._target(source)
        if self._links or target is None:
            return html.escape(text)
        rel = {} if is_own else {"rel": "nofollow noopener noreferrer"}
        return f"{_tag('a', {'href': target} | rel)}{html.escape(text)}</a>"

    def _image_address(self, source: str) -> str | None:
        """Return the address of an image on this service, or None if it is elsewhere or SVG."""
        source = _without_controls(source)
        if not source:
            return None
        if source.startswith(f"{self._context.base_url}/"):
            source = source.removeprefix(self._context.base_url)
        path, _ = self._path(source)
        if _is_elsewhere(source) or not path or path.lower().endswith(".svg"):
            return None
        if source.startswith("/") and (raw := _OWN_RAW.fullmatch(path)):
            return f"/{_quoted(raw[1])}/-/images/{_quoted(raw[2])}"
        project = self._context.project
        return f"/{_quoted(f'{project}/-/images/{self._context.ref}/{path}')}" if project else None

    def _target(self, url: str) -> tuple[str | None, bool]:
        """Return the address of a link, or None if it leads nowhere, and whether it is one of this service."""
        url = _without_controls(url)
        if not url or url.startswith("#"):
            return url.replace(f"#{_ID_PREFIX}", "#", 1) or None, True
        if _is_elsewhere(url):
            return (None, False) if _has_other_scheme(url) else (url, False)
        path, fragment = self._path(url)
        if url.startswith("/") and "/-/" in f"/{path}":
            return f"/{_quoted(path)}{fragment}", True
        if not self._context.project:
            return None, True
        kind = "tree" if not path or re.split("[?#]", url)[0].endswith("/") else "blob"
        path = f"{self._context.project}/-/{kind}/{self._context.ref}/{path}".rstrip("/")
        return f"/{_quoted(path)}{fragment}", True

    def _path(self, url: str) -> tuple[str, str]:
        """Return the path that a relative URL means, without slashes at its ends, and the URL's fragment with `#`."""
        before, sign, fragment = url.partition("#")
        path = unquote(before.partition("?")[0])
        start = "" if path.startswith("/") else self._context.folder
        return posixpath.normpath(f"/{start}/{path}").strip("/"), sign + fragment


def _attributes(text: str) -> dict[str, str]:
    return {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(text)} if text else {}


def _tag(name: str, attributes: dict[str, str]) -> str:
    written = "".join(f' {key}="{html.escape(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>"


def _check_box(attributes: dict[str, str]) -> str:
    """Return the disabled check box of a task in a list, or "" for any other field."""
    if attributes.get("type") != "checkbox":
        return ""
    is_checked = "checked" in attributes
    label = "Done" if is_checked else "Not done"
    return f'<input type="checkbox" disabled{" checked" if is_checked else ""} aria-label="{label}">'


def _without_controls(url: str) -> str:
    """Return a URL as browsers read it: without control characters, and without spaces around it."""
    return re.sub(r"[\x00-\x1f\x7f]", "", url).strip()


def _is_elsewhere(url: str) -> bool:
    """Return whether a URL has a scheme or a host. Browsers take `\\` for `/`."""
    return _SCHEME.match(url) is not None or url.replace("\\", "/").startswith("//")


def _has_other_scheme(url: str) -> bool:
    scheme = _SCHEME.match(url)
    return scheme is not None and scheme[0][:-1].lower() not in _SCHEMES


def _quoted(path: str) -> str:
    return quote(path, safe="/:@!$&'()*+,;=~")


def join_strings(parts: Sequence[Part]) -> list[str | list[str]]:
    """Return the parts for JSON: as few strings as possible, and references as lists."""
    result: list[str | list[str]] = []
    strings: list[str] = []
    for part in parts:
        if isinstance(part, Reference):
            result += ["".join(strings), [part.kind, part.name, part.text]]
            strings = []
        else:
            strings.append(part)
    return [*result, "".join(strings)]
