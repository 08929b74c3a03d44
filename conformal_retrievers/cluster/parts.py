"""Work in parts: a source that is cut into parts, and a folder with those that are done.

A source is a file or a folder of JSON lines (.jsonl), which are cut after a number of lines, or
of .jsonl.gz and .parquet, of which each file is one part. The folder has

    manifest.json           what was begun: the scorer, the source's files with their digests
    000000-000012.parquet   the result of part 12 of file 0; absent if no record of it has one
    000000-000012.json      its report, written last: the part is done
    errors.jsonl            the records without a result, by file and line, once all parts are done

Both are paths, or URLs of fsspec. Each file is written whole or not at all.
"""

import codecs
import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from conformal_retrievers.cluster.wording import say
from conformal_retrievers.data.files import Kind, envelope_text, parse_envelope, write_whole
from conformal_retrievers.data.jsonl import judged_query, parsed_json
from conformal_retrievers.data.judged import check_retrieved, queries_to_judge
from conformal_retrievers.data.parquet.files import iter_rows
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.retrieval import as_json
from conformal_retrievers.extras import require
from conformal_retrievers.version import __version__

require("ray", "fsspec")
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

Report = dict[str, Any]  # what is known of a part that is done, as JSON

KIND = Kind("conformal-retrievers/parts", 1, "score_dataset", "manifest")
MANIFEST, ERRORS = "manifest.json", "errors.jsonl"
ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
BLOCK = 1 << 20  # bytes


@dataclass(frozen=True)
class Part:
    """The lines of a file from one byte to another, or a whole file of another kind."""

    file: str
    start: int
    stop: int
    line: int  # the number of the first, from 1
    name: str  # of its results


@dataclass(frozen=True)
class Survey:
    """A file of a source: its size in bytes, its digest, and where its parts begin."""

    file: str
    size: int
    sha256: str
    starts: tuple[tuple[int, int], ...]  # the first byte and the number of the first line


def files_in(source: str | Path) -> list[str]:
    """Return the files of a source, by name, as absolute paths or URLs.

    Raises ValueError for a folder without data, or with files of other kinds, and FileNotFoundError
    if nothing is there.
    """
    fs, root = url_to_fs(str(source))
    if not fs.exists(root):
        raise FileNotFoundError(f"source is {source}, which does not exist; give a file or folder")
    paths = [path for path in sorted(fs.find(root)) if not Path(path).name.startswith((".", "_"))]
    files = [f for f in paths if f.endswith(ENDINGS) and Path(f).name != ERRORS]
    others = [f for f in paths if not f.endswith((*ENDINGS, ".json"))]
    if others or not files:
        has = f"has {Path(others[0]).name}" if others else "has no data"
        raise ValueError(f"source {source} {has}; give files that end in {', '.join(ENDINGS)}")
    return files if isinstance(fs, LocalFileSystem) else [fs.unstrip_protocol(f) for f in files]


def surveyed(file: str, per_part: int) -> Survey:
    """Read a file once: return its digest, and where each number of lines begins."""
    fs, path = url_to_fs(file)
    digest, starts, size = hashlib.sha256(), [(0, 1)], 0
    with fs.open(path, "rb") as opened:
        if not file.endswith(".jsonl"):
            for block in iter(lambda: opened.read(BLOCK), b""):
                digest.update(block)
                size += len(block)
        else:
            for number, line in enumerate(opened, start=1):
                if number > 1 and number % per_part == 1 % per_part:
                    starts.append((size, number))
                digest.update(line)
                size += len(line)
    return Survey(file, size, digest.hexdigest(), tuple(starts))


def parts_of(surveys: Sequence[Survey]) -> list[Part]:
    """Return the parts of a source in order; their names sort in the same order."""
    return [
        Part(survey.file, start, stop, line, f"{i:06}-{j:06}")
        for i, survey in enumerate(surveys)
        for j, ((start, line), (stop, _)) in enumerate(
            zip(survey.starts, [*survey.starts[1:], (survey.size, 0)], strict=True)
        )
    ]


def judged_in(part: Part) -> tuple[list[JudgedQuery], list[Report]]:
    """Return the judged queries of a part, and the malformed records, by file and line or row."""
    judged, errors = [], []
    for number, row in _records(part):
        place = f"line {number}"
        try:
            if isinstance(row, ValueError):
                raise row
            value = parsed_json(place, row.decode()) if isinstance(row, bytes) else row
            query = value if isinstance(value, JudgedQuery) else judged_query(place, value)
            check_retrieved(queries_to_judge([query]))
            judged.append(query)
        except (TypeError, ValueError) as error:
            why = str(error).removeprefix(f"{place}: ")
            errors.append({"file": part.file, "line": number, "error": why})
    return judged, errors


def _records(part: Part) -> Iterator[tuple[int, bytes | JudgedQuery | ValueError]]:
    """Yield the lines of a part that are not blank, or its rows of Parquet, after their numbers."""
    if part.file.endswith(".parquet"):
        yield from enumerate(iter_rows(part.file), start=1)
        return
    fs, path = url_to_fs(part.file)
    content = fs.cat_file(path, start=part.start, end=part.stop)
    if part.file.endswith(".gz"):
        content = gzip.decompress(content)
    content = content.removeprefix(codecs.BOM_UTF8) if part.start == 0 else content
    for number, line in enumerate(content.split(b"\n"), start=part.line):
        if line.strip():
            yield number, line


class Folder:
    """The folder of the results, at a path or URL."""

    def __init__(self, url: str | Path) -> None:
        self.fs, self.root = url_to_fs(str(url))
        self.is_local = isinstance(self.fs, LocalFileSystem)
        self.url = self.root if self.is_local else self.fs.unstrip_protocol(self.root)

    def begin(self, fields: Mapping[str, Any]) -> None:
        """Write the manifest, or compare it if there is one already.

        Raises ValueError, naming both, if a field of `fields` that says what is done to what has
        another value there, and if there are other files than its own.
        """
        self.fs.makedirs(self.root, exist_ok=True)
        if not self.fs.exists(f"{self.root}/{MANIFEST}"):
            if self.fs.ls(self.root):
                raise ValueError(say("others' files", url=self.url, manifest=MANIFEST))
            self.write(MANIFEST, envelope_text(fields, rows="files").encode())
            return
        stored = self.manifest
        for name in ("by", "queries_per_part", "files"):
            if fields[name] != stored[name]:
                pairs = zip_longest(_items(stored[name]), _items(fields[name]))
                theirs, ours = next(pair for pair in pairs if pair[0] != pair[1])
                facts = {"url": self.url, "name": name, "theirs": theirs, "ours": ours}
                raise ValueError(say("begun otherwise", **facts))

    def results(self) -> tuple[dict[str, Any], list[Report]]:
        """Return the manifest and the reports of all parts, in order; ValueError if some lack."""
        manifest, names = self.manifest, self.done()
        if len(names) < manifest["n_parts"]:
            raise ValueError(say("parts left", url=self.url, n=len(names), of=manifest["n_parts"]))
        return manifest, self.reports(names)

    @property
    def manifest(self) -> dict[str, Any]:
        """The fields of the manifest."""
        path = f"{self.root}/{MANIFEST}"
        return parse_envelope(self.fs.cat_file(path).decode(), f"{self.url}/{MANIFEST}", KIND)

    def done(self) -> set[str]:
        """Return the names of the parts that are done."""
        self.fs.invalidate_cache()
        names = [Path(path).name for path in self.fs.ls(self.root, detail=False)]
        return {name.removesuffix(".json") for name in names if name.endswith(".json")} - {
            MANIFEST.removesuffix(".json")
        }

    def reports(self, names: Iterable[str]) -> list[Report]:
        """Return the reports of parts that are done."""
        paths = [f"{self.root}/{name}.json" for name in sorted(names)]
        with ThreadPoolExecutor(16) as pool:  # an object store takes long for each
            return [*map(json.loads, pool.map(self.fs.cat_file, paths))]

    def finish(self, name: str, report: Report, save: Callable[[str], None] | None) -> None:
        """Write the result of a part, which `save` writes to a path, and then its report."""
        result = f"{name}.parquet"
        if save is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, result)
                save(path)
                self.write(result, Path(path).read_bytes())
        elif self.fs.exists(f"{self.root}/{result}"):  # of an actor that died
            self.fs.rm(f"{self.root}/{result}")
        self.write(f"{name}.json", json.dumps(report, ensure_ascii=False, default=as_json).encode())

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all: by renaming it, or by one put to an object store."""
        if self.is_local:
            write_whole(f"{self.root}/{name}", content, what="results")
        else:
            self.fs.pipe_file(f"{self.root}/{name}", content)


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [f"{name} {item!r:.60}" for name, item in value.items()]
    return value if isinstance(value, list) else [value]


def manifest_of(by: Mapping[str, Any], surveys: Sequence[Survey], per_part: int) -> dict[str, Any]:
    """Return the fields of a manifest; `by` is the scorer's name, and what is known of it."""
    return {
        "format": KIND.format,
        "version": KIND.version,
        "by": dict(by),
        "library": __version__,
        "queries_per_part": per_part,
        "n_parts": sum(len(survey.starts) for survey in surveys),
        "files": [
            {"file": Path(survey.file).name, "size": survey.size, "sha256": survey.sha256}
            for survey in surveys
        ],
    }
