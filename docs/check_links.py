"""Local links of the built documentation: every file and every anchor that a page names is there, nothing comes from elsewhere.

python docs/check_links.py build/docs
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: what a browser fetches by itself
FETCHED = {("img", "src"), ("script", "src"), ("link", "href"), ("source", "src"), ("iframe", "src")}


class Page(HTMLParser):
    """The links and anchors of a page, and what it fetches."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []
        self.silent: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors.update(given[name] for name in ("id", "name") if given.get(name))
        for name in ("href", "src"):
            if given.get(name):
                self.links.append((given[name], (tag, name) in FETCHED and given.get("rel") != "canonical"))
        if tag == "img" and not given.get("alt"):
            self.silent.append(given.get("src") or "")


def broken(folder: Path) -> list[str]:
    """A line for each link that leads nowhere, each file fetched from elsewhere, each image without alternative text."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(folder)
        found += [f"{where}: the image {source} has no alternative text" for source in page.silent]
        for link, fetched in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if fetched and parts.scheme != "data":
                    found.append(f"{where}: {link} is fetched from elsewhere")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                found.append(f"{where}: {link} is no file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{where}: {link} has no such anchor")
    return found


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    found = broken(folder)
    print("\n".join(found) or f"every local link of {len(list(folder.rglob('*.html')))} pages leads somewhere")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
