"""The web chat's Markdown, rendered where it is used: by the browser, from the page's own modules."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

import holdfast.api

from .conftest import watch

PAGE_FOLDER = Path(holdfast.api.__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
)


@pytest.fixture(scope="module")
def watched(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """An empty page of the same origin as the modules, under a policy as strict as the chat's or stricter."""

    def serve(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        headers = {"Content-Security-Policy": POLICY}
        if name.endswith(".js"):
            body = (PAGE_FOLDER / name).read_text()
            route.fulfill(content_type="text/javascript", body=body, headers=headers)
        else:
            route.fulfill(content_type="text/html", body="<!doctype html><main></main>", headers=headers)

    with browser.new_context() as context:
        page = context.new_page()
        mishaps = watch(page)
        page.route("**/*", serve)
        page.goto("http://chat.test/")
        yield page, mishaps


@pytest.fixture
def page(watched: tuple[Page, list[str]]) -> Iterator[Page]:
    page, mishaps = watched
    page.evaluate("document.querySelector('main').replaceChildren()")
    yield page
    assert not mishaps


def html(page: Page, text: str) -> str:
    """What the text becomes."""
    return str(
        page.evaluate(
            """async (text) => {
                const { renderMarkdown } = await import("/markdown.js");
                const main = document.querySelector("main");
                main.replaceChildren();
                renderMarkdown(main, text);
                return main.innerHTML;
            }""",
            text,
        )
    )


def link(href: str, words: str, picture: bool = False) -> str:
    mark = ' class="picture"' if picture else ""
    return f'<a href="{href}" target="_blank" rel="noopener noreferrer"{mark}>{words}</a>'


def code(language: str, text: str) -> str:
    return (
        f'<figure class="code"><figcaption><span>{language}</span><button class="copy" type="button">Copy</button>'
        f'</figcaption><pre tabindex="0"><code>{text}</code></pre></figure>'
    )


PLAIN = {
    "paragraphs": ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    "windows line ends": ("one\r\n\r\ntwo\r\n", "<p>one</p><p>two</p>"),
    "headings": ("# A\n### B ###\n####### C\n#D", "<h2>A</h2><h4>B</h4><p>####### C<br>#D</p>"),
    "rules": ("a\n\n---\n***\n_ _ _\n--", "<p>a</p><hr><hr><hr><p>--</p>"),
    "a rule under a paragraph": ("a\n---\nb", "<p>a</p><hr><p>b</p>"),
    "quotes": ("> a\n> > b\nc\n\nd", "<blockquote><p>a</p><blockquote><p>b<br>c</p></blockquote></blockquote><p>d</p>"),
    "code": ("```python x\n  a < b\n\n\tc\n```\nafter", code("python", "  a &lt; b\n\n\tc") + "<p>after</p>"),
    "tildes around backticks": ("~~~\n```\n~~~", code("text", "```")),
    "a longer fence": ("````\n```\n````", code("text", "```")),
    "an unclosed fence": ("```js\nlet a\n", code("js", "let a\n")),
    "an indented fence": ("  ```\n  a\n    b\n  ```", code("text", "a\n  b")),
    "indented code": ("a\n\n    b\n      c\n\nd", "<p>a</p>" + code("text", "b\n  c") + "<p>d</p>"),
    "a fence is no inline code": ("```a` b\nc", "<p>```a` b<br>c</p>"),
}


@pytest.mark.parametrize(("text", "expected"), PLAIN.values(), ids=PLAIN)
def test_blocks(page: Page, text: str, expected: str) -> None:
    assert html(page, text) == expected


TASK = 'class="task"><input type="checkbox" disabled=""'
LISTS = {
    "bullets": ("- a\n- b\n* c", "<ul><li>a</li><li>b</li></ul><ul><li>c</li></ul>"),
    "numbers": ("3. a\n4. b\n\ntext", '<ol start="3"><li>a</li><li>b</li></ol><p>text</p>'),
    "nested": ("- a\n  - b\n    1. c\n- d", "<ul><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li><li>d</li></ul>"),
    "nested by two columns under a number": (
        "1. a\n  - b\n2. c",
        "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>",
    ),
    "nested by a tab": ("- a\n\t- b", "<ul><li>a<ul><li>b</li></ul></li></ul>"),
    "loose": ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    "paragraphs in an item": ("1. a\n\n   b\n2. c", "<ol><li><p>a</p><p>b</p></li><li><p>c</p></li></ol>"),
    "code in an item": ("1. a\n   ```\n   x\n   ```\n2. b", "<ol><li>a" + code("text", "x") + "</li><li>b</li></ol>"),
    "an item goes on": ("- a\nb\n\nc", "<ul><li>a<br>b</li></ul><p>c</p>"),
    "a year begins no list": ("It was in\n1984. Or so.", "<p>It was in<br>1984. Or so.</p>"),
    "a list after a paragraph": ("Look:\n- a\n- b", "<p>Look:</p><ul><li>a</li><li>b</li></ul>"),
    "tasks": (
        "- [ ] a\n- [x] b",
        f'<ul><li {TASK} aria-label="To do">a</li><li {TASK} aria-label="Done">b</li></ul>',
    ),
    "empty items": ("-\n- a\n-", "<ul><li></li><li>a</li><li></li></ul>"),
}


@pytest.mark.parametrize(("text", "expected"), LISTS.values(), ids=LISTS)
def test_lists(page: Page, text: str, expected: str) -> None:
    assert html(page, text) == expected


def test_a_table_with_alignment_and_escaped_bars(page: Page) -> None:
    found = html(page, "a | b | c\n:-- | :-: | --:\n1 | `x\\|y` | **z**\n| only one |\n| 1 | 2 | 3 | 4 |\nafter")
    assert found == (
        '<div class="table" tabindex="0"><table><thead><tr><th scope="col">a</th><th class="centre" scope="col">b</th>'
        '<th class="right" scope="col">c</th></tr></thead><tbody><tr><td>1</td><td class="centre"><code>x|y</code></td>'
        '<td class="right"><strong>z</strong></td></tr><tr><td>only one</td></tr>'
        '<tr><td>1</td><td class="centre">2</td><td class="right">3</td></tr></tbody></table></div><p>after</p>'
    )


def test_bars_alone_make_no_table(page: Page) -> None:
    assert html(page, "a | b\nc | d") == "<p>a | b<br>c | d</p>"


INLINE = {
    "emphasis": (
        "*a* _b_ **c** __d__ ~~e~~",
        "<em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> <del>e</del>",
    ),
    "nested": ("***a** b* **c *d***", "<em><strong>a</strong> b</em> <strong>c <em>d</em></strong>"),
    "crossed": ("*a **b* c**", "<em>a <em><em>b</em> c</em></em>"),
    "not at spaces": ("2 * 3 * 4 and a ** b", "2 * 3 * 4 and a ** b"),
    "not inside words": ("snake_case_name __init__.py", "snake_case_name <strong>init</strong>.py"),
    "inside words with stars": ("un*frigging*real", "un<em>frigging</em>real"),
    "beside full stops of any script": ("**重要。**後", "<strong>重要。</strong>後"),
    "single tildes": ("~5 or ~6", "~5 or ~6"),
    "unclosed": ("**a *b `c [d](", "**a *b `c [d]("),
    "escapes": (r"\*a\* \[b\] \`c\` \d", r"*a* [b] `c` \d"),
    "code": ("`a*b*` ``c`d`` ` e ` `f", "<code>a*b*</code> <code>c`d</code> <code>e</code> `f"),
    "code binds tighter": ("*a `b* c`", "*a <code>b* c</code>"),
    "entities": ("&lt;b&gt; &amp; &#65;&#x42; &nope; &#0; &#xD800;", "&lt;b&gt; &amp; AB &amp;nope; \ufffd \ufffd"),
    "line breaks": ("a<br>b<BR />c\\\nd", "a<br>b<br>c<br>d"),
    "other tags are text": ("<b>a</b> <u", "&lt;b&gt;a&lt;/b&gt; &lt;u"),
}


@pytest.mark.parametrize(("text", "expected"), INLINE.values(), ids=INLINE)
def test_inside_a_line(page: Page, text: str, expected: str) -> None:
    assert html(page, text) == f"<p>{expected}</p>"


LINKS = {
    "plain": ("[a *b*](https://c.d/e 'title')", link("https://c.d/e", "a <em>b</em>")),
    "brackets in the address": ("[a](http://b.c/d_(e)) f", link("http://b.c/d_(e)", "a") + " f"),
    "angle brackets": ("[a](<http://b.c/d e>)", link("http://b.c/d%20e", "a")),
    "mail": ("[a](mailto:b@c.d)", link("mailto:b@c.d", "a")),
    "by itself": ("see https://a.b/c, ok", f"see {link('https://a.b/c', 'https://a.b/c')}, ok"),
    "by itself in brackets": ("(http://d.e/f).", f"({link('http://d.e/f', 'http://d.e/f')})."),
    "by itself and bold": ("**https://a.b**", f"<strong>{link('https://a.b/', 'https://a.b')}</strong>"),
    "its own name": ("[https://a.b](https://a.b)", link("https://a.b/", "https://a.b")),
    "in angles": ("<https://a.b>", link("https://a.b/", "https://a.b")),
    "without words": ("[](https://a.b)", link("https://a.b/", "https://a.b")),
    "ampersands": ("[a](https://b.c/?d&amp;e)", link("https://b.c/?d&amp;e", "a")),
    "pictures": ("![a](https://b.c/d.png)", link("https://b.c/d.png", "a", picture=True)),
    "a picture in a link": ("[![a](https://b.c/d.png)](https://e.f)", link("https://e.f/", "a")),
    "a link in a link": ("[a [b](https://c.d) e](f)", f"[a {link('https://c.d/', 'b')} e](f)"),
    "emphasis ends at its edge": ("*a [b* c](https://d.e)", f"*a {link('https://d.e/', 'b* c')}"),
    "no address": ("[a] [b]() [c][d] array[0](x)", "[a] [b]() [c][d] array[0](x)"),
}


@pytest.mark.parametrize(("text", "expected"), LINKS.values(), ids=LINKS)
def test_links(page: Page, text: str, expected: str) -> None:
    assert html(page, text) == f"<p>{expected}</p>"


UNSAFE = [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    " javascript:alert(1)",
    "\x01javascript:alert(1)",
    "java\tscript:alert(1)",
    "javascript&#58;alert(1)",
    "javascript&#x3a;alert(1)",
    "&#106;avascript:alert(1)",
    "java&#10;script:alert(1)",
    "javascript\\:alert(1)",
    "<javascript:alert(1)>",
    "<java\x00script:alert(1)>",
    "vbscript:msgbox(1)",
    "data:text/html,<script>alert(1)</script>",
    "data:image/svg+xml;base64,PHN2Zz4=",
    "file:///etc/passwd",
    "blob:null/a",
    "//evil.example",
    "/relative",
    "#fragment",
    "holdfast:x",
]


@pytest.mark.parametrize("address", UNSAFE)
def test_an_unsafe_address_is_no_link(page: Page, address: str) -> None:
    for text in (f"[a]({address})", f"![a]({address})", f"[a]({address} 'b')", f"<{address}>", address):
        assert "<a " not in html(page, text)


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "`<script>alert(1)</script>`",
    "```<script>\n<script>alert(1)</script>\n```",
    "```\n</code></pre><script>alert(1)</script>",
    "| <script>alert(1)</script> |\n|---|\n| <img src=x onerror=alert(1)> |",
    "> <script>alert(1)</script>\n> - <img src=x onerror=alert(1)>",
    "# <script>alert(1)</script>",
    "- [x] <script>alert(1)</script>",
    '[a](https://b.c/"onmouseover="alert(1))',
    "[a](https://b.c/'><script>alert(1)</script>)",
    '[<img src=x onerror=alert(1)>](https://b.c "><script>alert(1)</script>")',
    '![" onerror="alert(1)](https://b.c/x)',
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "https://a.b/<script>alert(1)</script>",
    '<https://a.b/"onclick=alert(1)>',
    "\u202e<script>\u2066alert(1)",
    "<scr\x00ipt>alert(1)</scr\x00ipt>",
]
ELEMENTS = {
    *("p", "h2", "h3", "h4", "h5", "h6", "blockquote", "hr", "ul", "ol", "li", "input"),
    *("strong", "em", "del", "code", "br", "a"),
    *("figure", "figcaption", "span", "button", "pre", "div", "table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"href", "target", "rel", "class", "type", "tabindex", "scope", "start", "disabled", "aria-label"}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(page: Page, text: str) -> None:
    html(page, text)
    assert_harmless(page)


def assert_harmless(page: Page) -> None:
    """Nothing but our own elements and attributes, and links that lead to harmless schemes."""
    names, attributes, schemes = page.evaluate(
        """() => {
            const all = [...document.querySelectorAll("main *")];
            return [
                [...new Set(all.map((node) => node.localName))],
                [...new Set(all.flatMap((node) => node.getAttributeNames()))],
                [...new Set([...document.querySelectorAll("main a")].map((link) => link.protocol))],
            ];
        }"""
    )
    assert set(names) <= ELEMENTS
    assert set(attributes) <= ATTRIBUTES
    assert set(schemes) <= {"http:", "https:", "mailto:"}


PIECES = [
    "a", "word ", "*", "**", "***", "_", "~~", "`", "``", "```", "~~~", "[", "]", "](", "![", "(", ")", "<", ">", "\\",
    "\n", "\n\n", "\n- ", "\n  - ", "\n1. ", "\n> ", "\n# ", "#", "-", "---", "|", "|---|", "\n|-|-|\n", "    ", "\t",
    "&lt;", "&#58;", "https://a.b/c", "javascript:alert(1)", "<script>", " onerror=", '"', "'", "[x] ", "\n```js\n",
]  # fmt: skip


def test_an_answer_that_grows_becomes_what_it_would_be_at_once(page: Page) -> None:
    """Random texts in random steps: rendered step by step, and from the start, they come to the same."""
    chance = random.Random(20)
    texts = ["".join(chance.choices(PIECES, k=chance.randint(1, 60))) for _ in range(400)]
    differing = page.evaluate(
        """async ([texts, seed]) => {
            const { Markdown, renderMarkdown } = await import("/markdown.js");
            const main = document.querySelector("main");
            const differing = [];
            for (const text of texts) {
                const grown = document.createElement("div");
                const markdown = new Markdown(grown);
                for (let at = 0; at < text.length; ) {
                    seed = (seed * 48271) % 2147483647;
                    const step = 1 + (seed % 7);
                    markdown.append(text.slice(at, at + step));
                    markdown.render();
                    at += step;
                }
                markdown.finish();
                const whole = document.createElement("div");
                renderMarkdown(whole, text);
                main.append(whole);
                if (grown.innerHTML !== whole.innerHTML) differing.push([text, grown.innerHTML, whole.innerHTML]);
            }
            return differing;
        }""",
        [texts, 1],
    )
    assert differing == []
    assert_harmless(page)


def test_what_is_being_written_is_shown_as_if_it_were_closed(page: Page) -> None:
    shown = page.evaluate(
        """async () => {
            const { Markdown } = await import("/markdown.js");
            return ["a **bold wo", "use `cod", "- **item", "~~gone"].map((text) => {
                const main = document.createElement("main");
                const markdown = new Markdown(main);
                markdown.append(text);
                markdown.render();
                return main.innerHTML;
            });
        }"""
    )
    assert shown == [
        "<p>a <strong>bold wo</strong></p>",
        "<p>use <code>cod</code></p>",
        "<ul><li><strong>item</strong></li></ul>",
        "<p><del>gone</del></p>",
    ]


def test_only_the_last_block_is_rendered_again(page: Page) -> None:
    kept = page.evaluate(
        """async () => {
            const { Markdown } = await import("/markdown.js");
            const main = document.querySelector("main");
            const markdown = new Markdown(main);
            markdown.append("# One\\n\\ntwo\\n\\n```js\\nlet a;\\nlet b;\\n");
            markdown.render();
            const [heading, paragraph, code] = main.children;
            const text = code.querySelector("code").firstChild;
            markdown.append("let c;\\n");
            markdown.render();
            return [
                heading === main.children[0], paragraph === main.children[1], code === main.children[2],
                text === main.querySelector("code").firstChild, text.data,
            ];
        }"""
    )
    assert kept == [True, True, True, True, "let a;\nlet b;\nlet c;\n"]


def test_a_long_answer_in_many_steps_stays_cheap(page: Page) -> None:
    """100 kB in 2,000 steps, rendered at every step."""
    seconds = page.evaluate(
        """async () => {
            const { Markdown } = await import("/markdown.js");
            const section = "## Title\\n\\nSome *text* with `code` and [a link](https://a.b).\\n\\n- one\\n- two" +
                "\\n\\n```js\\nlet a = 1;\\n```\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n";
            const text = section.repeat(Math.ceil(100_000 / section.length));
            const markdown = new Markdown(document.querySelector("main"));
            const begun = performance.now();
            for (let at = 0; at < text.length; at += 50) {
                markdown.append(text.slice(at, at + 50));
                markdown.render();
            }
            markdown.finish();
            return (performance.now() - begun) / 1000;
        }"""
    )
    assert seconds < 10  # on a busy machine; rendering all of it 2,000 times would be minutes


LARGE = {
    "brackets": "'['.repeat(n)",
    "closing brackets": "']'.repeat(n)",
    "links that never end": "'[]('.repeat(n / 3)",
    "angle links that never end": "'[](<'.repeat(n / 4)",
    "titles that never end": "'[](a \"'.repeat(n / 6)",
    "pictures": "'!['.repeat(n / 2)",
    "good links": "'[a](http://b) '.repeat(n / 14)",
    "opening emphasis": "'*a '.repeat(n / 3)",
    "nested emphasis": "'*a '.repeat(n / 6) + 'a* '.repeat(n / 6)",
    "mixed emphasis": "'**a *b _c ~~d [e '.repeat(n / 17)",
    "backticks of all lengths": "Array.from({length: Math.sqrt(2 * n)}, (_, i) => '`'.repeat(i + 1)).join(' ')",
    "code": "'`a'.repeat(n / 2)",
    "quotes": "'>'.repeat(n)",
    "a staircase of quotes": "Array.from({length: Math.sqrt(2 * n)}, (_, i) => '>'.repeat(i) + ' a').join('\\n')",
    "nested lists in a line": "'- '.repeat(n / 2)",
    "a staircase of lists": "Array.from({length: Math.sqrt(2 * n)}, (_, i) => ' '.repeat(i) + '- a').join('\\n')",
    "items": "'- a\\n'.repeat(n / 4)",
    "lines": "'a\\n'.repeat(n / 2)",
    "blank lines": "'\\n'.repeat(n)",
    "spaces": "' '.repeat(n) + 'x'",
    "hashes": "'# a' + ' #'.repeat(n / 2) + ' x'",
    "almost rules": "('- '.repeat(400) + 'x\\n').repeat(n / 802)",
    "almost tables": "('|' + '-'.repeat(900) + 'x\\n').repeat(n / 903)",
    "rows": "'|a|b|\\n|-|-|\\n' + '|a|b|\\n'.repeat(n / 6)",
    "columns": "'|'.repeat(n / 2) + '\\n' + '|-'.repeat(400) + '\\n' + '|\\n'.repeat(n / 4)",
    "addresses": "'http://a '.repeat(n / 9)",
    "an address with brackets": "'http://a' + ')'.repeat(n)",
    "angles": "'<'.repeat(n)",
    "ampersands": "'&'.repeat(n)",
    "backslashes": "'\\\\'.repeat(n)",
}


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_a_megabyte_of_trouble_takes_linear_time(page: Page, text: str) -> None:
    seconds, depth = page.evaluate(
        f"""async () => {{
            const {{ renderMarkdown }} = await import("/markdown.js");
            const n = 1_000_000;
            const text = {text};
            const root = document.createElement("div");
            const begun = performance.now();
            renderMarkdown(root, text);
            const seconds = (performance.now() - begun) / 1000;
            let depth = 0;
            for (let node = root; node; node = node.lastElementChild) depth += 1;
            return [seconds, depth];
        }}"""
    )
    assert seconds < 30  # on a busy machine; quadratic would be hours
    assert depth < 80


FORBIDDEN = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|createContextual"


def test_the_pages_scripts_never_parse_html() -> None:
    scripts = sorted(PAGE_FOLDER.glob("*.js"))
    assert scripts
    for script in scripts:
        assert not re.search(FORBIDDEN, script.read_text()), script.name


def test_the_pages_html_has_no_inline_script_or_style() -> None:
    text = (PAGE_FOLDER / "index.html").read_text()
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", text)
    assert not re.search(r"(src|href)=\"(https?:)?//", text)
