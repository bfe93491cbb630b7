"""The pages of the documentation are found: each is in the index, and every link leads to a file and a heading."""

import re
from pathlib import Path

from support.examples_of_docs import REPOSITORY, pages


def links(page: Path) -> list[str]:
    """What a page links to in the repository."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_has_every_page_but_those_of_single_decisions_and_backends() -> None:
    docs = REPOSITORY / "docs"
    linked = {(docs / link).resolve() for link in links(docs / "README.md")}
    assert set(docs.glob("*.md")) - {docs / "README.md"} <= linked


def test_every_link_leads_somewhere() -> None:
    for name in pages():
        page = REPOSITORY / name
        for link in links(page):
            path, _, heading = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{name}: {link}"
            assert not heading or heading in headings(target), f"{name}: {link}"
