"""Checks that every relative link in the Markdown files leads to a file that is there, and to a heading in it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
_ANCHOR = re.compile(r"""<a\s+(?:id|name)=["']([^"']+)["']""")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def broken_links(root: Path, files: list[Path]) -> Iterator[str]:
    for file in files:
        text = file.read_text(encoding="utf-8")
        for found in _LINK.finditer(_without_code(text)):
            link = found[1] or found[2]
            if not _ELSEWHERE.match(link) and (why := _why_broken(root, file, unquote(link))):
                line = text.count("\n", 0, found.start()) + 1
                yield f"{file.relative_to(root)}:{line}: {link}: {why}"


def _why_broken(root: Path, file: Path, link: str) -> str:
    path, _, anchor = link.partition("#")
    target = (root if path.startswith("/") else file.parent).joinpath(path.lstrip("/")) if path else file
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md" and anchor not in _anchors(target.read_text(encoding="utf-8")):
        return "no such heading"
    return ""


def _anchors(text: str) -> set[str]:
    """What a heading is called in a link, as GitHub makes it."""
    anchors: set[str] = set(_ANCHOR.findall(text))
    headings = _HEADING.findall(re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL))
    for heading in headings:
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        count = 0
        while name in anchors:
            count += 1
            name = f"{plain}-{count}"
        anchors.add(name)
    return anchors


def _without_code(text: str) -> str:
    """The text with code blanked out, so that lines keep their numbers."""
    return _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)


def main(root: Path) -> int:
    # Files that git ignores are none of ours; files that it does not know yet are.
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    files = [root / name for name in sorted(set(listed.split("\0"))) if name and (root / name).exists()]
    broken = list(broken_links(root, files))
    print("\n".join(broken) or f"{len(files)} files, all links lead somewhere")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parent.parent))
