"""The check of the documents' links, tried on links that are broken."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
broken_links = runpy.run_path(str(ROOT / "scripts" / "links.py"))["broken_links"]


def test_every_link_in_our_documents_leads_somewhere() -> None:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    assert not list(broken_links(ROOT, documents))


def test_every_page_is_listed_in_the_table_of_contents() -> None:
    contents = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page != "README.md" and f"({page})" not in contents] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A `tool` [and](x.md) more\n\n# Twice\n\n# Twice\n\n```\n# not one\n```\n")
    (tmp_path / "links.md").write_text(
        "# Here\n"
        "[a](gone.md) [b](there.md#missing) [c](#nowhere)\n"
        "[d](there.md#not-one)\n"
        "\n"
        "[e]: folder/gone.md\n"
        "```\n[f](gone.md)\n```\n"
        "`[g](gone.md)` [h](there.md) [i](there.md#a-tool-and-more) [j](#here) [k](/there.md#twice-1)\n"
        '[l](https://example.org/x) [m](mailto:a@example.org) ![n](there.md "title")\n'
    )
    assert list(broken_links(tmp_path, [tmp_path / "links.md"])) == [
        "links.md:2: gone.md: no such file",
        "links.md:2: there.md#missing: no such heading",
        "links.md:2: #nowhere: no such heading",
        "links.md:3: there.md#not-one: no such heading",
        "links.md:5: folder/gone.md: no such file",
    ]
