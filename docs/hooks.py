"""What MkDocs adds to `docs/` for the site: READMEs, the changelog, notebooks, and llms.txt.

Links are written for a reader of the repository, where `docs/` is one folder of several. On the
site, the files of `docs/` are at the root, and all others keep their paths. What a page links to is
on the site as well.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import click
import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from typer.main import get_command

from conformal_retrievers.cli import app

ROOT = Path(__file__).parent.parent
PLACES = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r'(\]\(|src="|href="|srcset=")([^)"#\s]+)')
API = re.compile(r"^::: (\S+)(?:\n    .*)*", re.M)
PACKAGES = ("conformal_retrievers", "langchain_conformal", "llama_index.postprocessor.conformal")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
sources: dict[str, str] = {}  # from the path on the site to that in the repository
texts: dict[str, str] = {}  # the Markdown of each page of the site
order: list[Page] = []  # the pages as the navigation has them


def on_config(config: MkDocsConfig) -> None:
    """List the notebooks in the navigation."""
    notebooks = [place(path) for path in tracked("cookbook/*.ipynb")]
    (cookbook,) = (item for item in config.nav if "Cookbook" in item)
    cookbook["Cookbook"] = ["cookbook/README.md", *notebooks]


@event_priority(100)  # before the plugins look at the files
def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what the pages link to, and what these pages link to in turn."""
    sources.update({file.src_uri: f"docs/{file.src_uri}" for file in files})
    todo = [f"docs/{f.src_uri}" for f in files.documentation_pages()]
    todo += [*PLACES, *tracked("cookbook/*.ipynb"), "cookbook/README.md", "benchmarks/README.md"]
    for path in todo:
        if place(path) not in sources:
            sources[place(path)] = path
            made = from_notebook(path) if path.endswith(".ipynb") else {}
            for name, content in made.items():
                files.append(File.generated(config, name, content=content))
            kept = path if made else place(path)  # a notebook is there to download, too
            files.append(File.generated(config, kept, abs_src_path=(ROOT / path).as_posix()))
        if place(path).endswith(".md"):
            todo += [found for found in linked(path) if found not in todo]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where their files are on the site."""
    here = posixpath.dirname(sources[page.file.src_uri])
    there = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        path = target(here, link[2])
        if path == sources[page.file.src_uri]:  # the notebook that the page shows
            return link[0]
        return link[1] + (posixpath.relpath(place(path), there or ".") if path else link[2])

    if page.file.src_uri == "reference/commands.md":
        markdown += "".join(f"\n## {name}\n\n{fenced('text', text)}\n" for name, text in commands())
    texts[page.file.src_uri] = LINK.sub(moved, markdown)
    return texts[page.file.src_uri]


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Remember the order of the pages for llms.txt."""
    order[:] = nav.pages


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt (llmstxt.org), the Markdown of the pages beside them, and all of it as one."""
    site = Path(config.site_dir)
    for path, text in texts.items():
        texts[path] = API.sub(interface, text)
        (site / path).write_text(texts[path], encoding="utf-8")
    lines, whole = [f"# {config.site_name}", f"> {config.site_description}"], []
    for section in dict.fromkeys(
        page.ancestors[-1].title if page.ancestors else "" for page in order
    ):
        lines.append(f"## {section or 'Overview'}")
        entries = []
        for page in order:
            if (page.ancestors[-1].title if page.ancestors else "") == section:
                path = page.file.src_uri
                entries.append(f"- [{page.title}]({path}): {first_sentence(texts[path])}")
                whole.append(LINK.sub(partial(from_root, posixpath.dirname(path)), texts[path]))
        lines.append("\n".join(entries))
    (site / "llms.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


def interface(named: re.Match[str]) -> str:
    """Return the signatures and the docstrings of what a page names after `:::`."""
    things = [objects()[named[1]]]
    if not things[0].is_attribute:
        things += [one for one in things[0].all_members.values() if one.is_public and one.docstring]
    parts = [f"## {named[1]}"]
    for alias in things:
        one = alias.final_target if alias.is_alias else alias
        if one.is_function or one.is_class:
            parts.append(fenced("python", one.signature() or one.name))
        elif one.is_attribute:
            hint = f": {one.annotation}" if one.annotation else f" = {one.value}"
            parts.append(fenced("python", one.name + hint))
        parts.append(one.docstring.value if one.docstring else "")
    return "\n\n".join(filter(None, parts))


@cache
def objects() -> griffe.ModulesCollection:
    """Return what the packages of the repository define."""
    loader = griffe.GriffeLoader(search_paths=[ROOT, *ROOT.glob("integrations/*")])
    for package in PACKAGES:
        loader.load(package)
    loader.resolve_aliases(external=False, implicit=True)
    return loader.modules_collection


def from_root(folder: str, link: re.Match[str]) -> str:
    """Return the link of a page in a folder as one of a page at the root of the site."""
    inside = "://" not in link[2]
    return link[1] + (posixpath.normpath(posixpath.join(folder, link[2])) if inside else link[2])


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's first paragraph."""
    paragraphs = re.split(r"\n\s*\n", text)
    prose = next((p for p in paragraphs if re.match(r"[\w*`\"“\[]", p)), "")
    return re.split(r"(?<=[.:])\s", " ".join(prose.split()), maxsplit=1)[0].rstrip(":")


def tracked(pattern: str) -> list[str]:
    """Return the paths of files in the repository."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


def place(path: str) -> str:
    """Return where a file of the repository is on the site."""
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return PLACES.get(path, path.removeprefix("docs/"))


def target(folder: str, link: str) -> str | None:
    """Return the path in the repository that a link leads to, if it leads to a file there."""
    path = posixpath.normpath(posixpath.join(folder, link))
    if path.startswith("..") or "://" in link:
        return None
    paths = [path, f"{path}/README.md"]
    return next((p for p in paths if (ROOT / p).is_file()), None)


def linked(path: str) -> Iterator[str]:
    """Return the files of the repository that a page links to."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        text = "\n".join("".join(c["source"]) for c in json.loads(text)["cells"])
    for link in LINK.finditer(text):
        found = target(posixpath.dirname(path), link[2])
        if found:
            yield found


def from_notebook(path: str) -> dict[str, str | bytes]:
    """Return a notebook as a page of Markdown, and its pictures, by their places."""
    parts: list[str] = []
    images: dict[str, str | bytes] = {}
    heading = ""
    for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = ([heading, *re.findall(r"^#+ (.*)", source, re.M)])[-1]
            parts.append(source)
        else:
            parts.append(fenced("python", source))
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"{path.removesuffix('.ipynb')}-{len(images) + 1}.png"
                images[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Figure: {heading}]({posixpath.basename(name)})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            elif "application/vnd.jupyter.widget-view+json" not in data:
                text = COLOURS.sub("", "".join(data["text/plain"]))
                parts.append(fenced("{ .text .no-copy }", text))
    name = posixpath.basename(path)
    parts.insert(1, f"[Download this notebook]({name}){{ download }}")
    return images | {place(path): "\n\n".join(parts)}


def commands() -> Iterator[tuple[str, str]]:
    """Return the name and the help of each command."""

    def below(command: click.Command, parent: click.Context | None, name: str) -> Iterator:
        context = click.Context(command, parent, name, terminal_width=80)
        yield context.command_path, command.get_help(context)
        for inner in getattr(command, "commands", {}).items():
            yield from below(inner[1], context, inner[0])

    return below(get_command(app), None, "conformal-retrievers")


def fenced(language: str, text: str) -> str:
    """Return text as a block of code."""
    return f"````{language}\n{text.rstrip()}\n````"
