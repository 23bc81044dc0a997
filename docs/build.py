"""Render docs/ and the README to docs/_site and check every link: ``./dev docs``."""

import html
import importlib
import inspect
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "_site"
ROOMS = (
    "symmetry",
    "distribution",
    "alignment",
    "posterior",
    "posterior.symmetrized",
    "landscape",
    "represent",
    "checkpoints",
    "models",
    "data",
    "train",
    "store",
    "study",
)
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
img {{ max-width: 100% }} table {{ border-collapse: collapse; display: block; overflow-x: auto }}
td, th {{ border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: left }}
pre {{ background: #f6f6f6; padding: .8rem; overflow-x: auto }} code {{ font-size: .92em }} a {{ color: #0072b2 }}
</style><nav><a href="{home}">coset</a></nav>{body}</html>
"""


def anchor(heading: str) -> str:
    """The name of a heading, as in links to it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {anchor(match) for match in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def sources() -> dict[Path, str]:
    """Every Markdown page by its path from the root, the pages of the public names among them."""
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
    texts = {page.relative_to(ROOT): page.read_text(encoding="utf-8") for page in pages if SITE not in page.parents}
    return texts | {Path("docs/api") / f"{room}.md": reference(room) for room in ROOMS}


def reference(room: str) -> str:
    """Signatures and docstrings of a room's public names."""
    module = importlib.import_module(f"coset.{room}")
    parts = [f"# coset.{room}", inspect.getdoc(module) or ""]
    for name in module.__all__:
        thing = getattr(module, name)
        text = inspect.getdoc(thing) if callable(thing) else ""
        try:
            signature = str(inspect.signature(thing)) if callable(thing) else ""
        except ValueError:
            signature = ""
        parts += [f"## {name}", f"```python\n{name}{signature}\n```", text or ""]
    return "\n\n".join(parts) + "\n"


def broken(pages: dict[Path, str]) -> list[str]:
    """Links to files, pages or headings that are not there."""
    problems = []
    for page, text in pages.items():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, heading = target.partition("#")
            path = (ROOT / page.parent / name).resolve().relative_to(ROOT) if name else page
            if path not in pages and not (ROOT / path).is_file():
                problems.append(f"{page}: no such file: {target}")
            elif heading and heading not in anchors(pages.get(path, "")):
                problems.append(f"{page}: no such heading: {target}")
    return problems


def render(pages: dict[Path, str]) -> None:
    """Write the site anew."""
    shutil.rmtree(SITE, ignore_errors=True)
    markdown = MarkdownIt("commonmark").enable("table")
    for page, text in pages.items():
        target = SITE / page.with_suffix(".html")
        target.parent.mkdir(parents=True, exist_ok=True)
        body = re.sub(r'href="([^":]+)\.md(#[^"]*)?"', r'href="\1.html\2"', markdown.render(text))
        body = re.sub(r"<h(\d)>(.*?)</h\1>", _with_anchor, body)
        title = html.escape(text.lstrip("# ").split("\n", 1)[0])
        home = "/".join([".."] * (len(page.parts) - 1) + ["README.html"])
        target.write_text(PAGE.format(title=title, body=body, home=home), encoding="utf-8")
    for file in (ROOT / "docs").rglob("*"):
        if file.suffix in {".png", ".svg", ".csv", ".json"} and SITE not in file.parents:
            copy = SITE / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def _with_anchor(match: re.Match[str]) -> str:
    level, text = match.groups()
    return f'<h{level} id="{anchor(html.unescape(re.sub("<.*?>", "", text)))}">{text}</h{level}>'


def main() -> int:
    pages = sources()
    if problems := broken(pages):
        print("\n".join(problems), file=sys.stderr)
        return 1
    render(pages)
    print(f"{len(pages)} pages in {SITE.relative_to(ROOT)}, all links lead somewhere")
    return 0


if __name__ == "__main__":
    sys.exit(main())
