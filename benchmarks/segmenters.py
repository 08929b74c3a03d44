"""Where `split="sentences"` ends sentences, against marked sentences and other segmenters.

    pip install syntok
    .venv/bin/python -m benchmarks.segmenters --data FOLDER --write

`FOLDER` has scifact (abstracts), ragbench-hotpotqa (Wikipedia passages) and wice (web pages, here
with one marked sentence a line), whose sentences are marked, and more sets in the BEIR layout, for
the check of the ranges. "unicode" are the rules of UAX #29.
"""

from __future__ import annotations

import argparse
import gzip
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import regex
import sentencex
import syntok.segmenter
from rich import box
from rich.console import Console
from rich.table import Table

from conformal_retrievers.data.sentences import splitter

RESULTS = Path(__file__).parent / "results" / "segmenters.md"
ALL = ("scifact", "ragbench-hotpotqa", "wice", "nq-open", "pubmedqa")
MOST = {"scifact": 1000, "scifact, wrapped": 1000, "ragbench-hotpotqa": 1000, "wice": 100}
ROUNDS = 5
Document = tuple[str, frozenset[int]]  # a text, and where its sentences but the first begin
Segmenter = Callable[[str], Iterable[tuple[int, int]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    console = Console(width=150, record=True)
    console.print(quality(marked(arguments.data)))
    console.print(exactness(arguments.data))
    if arguments.write:
        lines = [line.rstrip() for line in console.export_text().strip().splitlines()]
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


# --- marked sentences -----------------------------------------------------------------------------


def marked(folder: Path) -> dict[str, list[Document]]:
    abstracts = [
        located(*(spaced(text) for text in (" ".join(row["sentences"]), *row["sentences"])))
        for row in rows(folder / "scifact/corpus.jsonl.gz")
    ]
    found = {
        "scifact": abstracts,
        "scifact, wrapped": [(wrapped(text), starts) for text, starts in abstracts],
        "ragbench-hotpotqa": list(passages(folder / "ragbench-hotpotqa")),
        "wice": list(pages(folder / "wice")),
    }
    rng = np.random.default_rng(0)
    return {
        name: [documents[i] for i in rng.permutation(len(documents))[: MOST[name]]]
        for name, documents in found.items()
    }


def spaced(text: str) -> str:
    r"""Return a text of scifact with white space for its line breaks, which are "\n" in letters."""
    return text.replace("\\n", "  ")


def located(text: str, *sentences: str) -> Document:
    starts, end = [], 0
    for sentence in filter(None, map(str.strip, sentences)):
        starts.append(text.index(sentence, end))
        end = starts[-1] + len(sentence)
    return text, frozenset(starts[1:])


def wrapped(text: str) -> str:
    """Break lines of 80 characters at the spaces, so that no character moves."""
    out, end = list(text), 0
    for line in textwrap.wrap(text, 80, break_long_words=False, break_on_hyphens=False):
        start = text.index(line, end)
        if text[end:start]:
            out[start - 1] = "\n"
        end = start + len(line)
    return "".join(out)


def passages(folder: Path) -> Iterator[Document]:
    sentences: dict[str, dict[str, list[str]]] = {}
    for row in rows(folder / "snippets.jsonl.gz"):
        of_query = sentences.setdefault(row["corpus_id"], {})
        of_query.setdefault(row["query_id"], []).append(row["text"])
    for row in rows(folder / "corpus.jsonl.gz"):
        for own in list(sentences.get(row["_id"], {}).values())[:1]:
            try:
                yield located(row["text"], *own)
            except ValueError:  # six passages, whose sentences are not their text
                continue


def pages(folder: Path) -> Iterator[Document]:
    texts = {row["_id"]: row["text"].strip() for row in rows(folder / "corpus.jsonl.gz")}
    of_query: dict[str, list[str]] = {}
    with gzip.open(folder / "candidates.tsv.gz", "rt", encoding="utf-8") as file:
        for line in list(file)[1:]:
            query, sentence = line.split("\t")[:2]
            of_query.setdefault(query, []).append(texts[sentence])
    for lines in dict.fromkeys(map(tuple, of_query.values())):
        yield located("\n".join(filter(None, lines)), *lines)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


# --- the segmenters -------------------------------------------------------------------------------


def by_sentencex(text: str) -> Iterator[tuple[int, int]]:
    for found in sentencex.get_sentence_boundaries("en", text):
        yield found["start_index"], found["end_index"]


def by_syntok(text: str) -> Iterator[tuple[int, int]]:
    for paragraph in syntok.segmenter.analyze(text):
        for tokens in paragraph:
            yield tokens[0].offset, tokens[-1].offset + len(tokens[-1].value)


MARKS, TERM = r"[\p{SB=Extend}\p{SB=Format}]*+", r"[\p{SB=STerm}\p{SB=ATerm}]"
UNICODE = regex.compile(
    rf"""
    (?: \p{{SB=STerm}} {MARKS}
      | \p{{SB=ATerm}} {MARKS}
        (?! \p{{SB=Numeric}} )
        (?! (?<= [\p{{SB=Upper}}\p{{SB=Lower}}] {MARKS} \p{{SB=ATerm}} {MARKS} ) \p{{SB=Upper}} )
        (?= (?: \p{{SB=Close}} {MARKS} )*+ (?: [\p{{SB=Sp}}\s] {MARKS} )*+
            (?! [^\p{{SB=OLetter}}\p{{SB=Upper}}\p{{SB=Lower}}{TERM}]*+ \p{{SB=Lower}} ) )
    )
    (?: (?: [\p{{SB=Close}}--\p{{Ps}}--\p{{Pi}}] | \p{{Pi}}(?!\w) ) {MARKS} )*+
    (?: [\p{{SB=Sp}}\s] {MARKS} )*+
    (?! [\p{{SB=SContinue}}{TERM}] )
    """,
    regex.VERSION1 | regex.VERBOSE,
)
BLANK_LINE = regex.compile(r"\n\s*?\n\s*|[\f\u2029]\s*")


def by_unicode(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for end in (*(found.end() for found in BLANK_LINE.finditer(text)), len(text)):
        for found in UNICODE.finditer(text, start, end):
            yield start, found.end()
            start = found.end()
        yield start, end
        start = end


OURS = splitter("sentences")
SEGMENTERS: dict[str, Segmenter] = {
    'split="sentences"': OURS,
    "sentencex alone": by_sentencex,
    "unicode": by_unicode,
    "syntok": by_syntok,
}

# --- the comparison -------------------------------------------------------------------------------


def quality(sets: dict[str, list[Document]]) -> Table:
    """Precision, recall and F1 of where sentences begin, ± sd over resampled documents; time."""
    shown = Table(box=box.MARKDOWN)
    for heading in ("set", "segmenter", "precision", "recall", "F1", "time"):
        shown.add_column(heading, no_wrap=True)
    for name, documents in sets.items():
        times = {
            segmenter: [seconds(find, documents) for _ in range(ROUNDS)]
            for segmenter, find in SEGMENTERS.items()
        }
        base = np.median(times["unicode"])
        for segmenter, find in SEGMENTERS.items():
            counts = np.array([compared(find, *document) for document in documents])
            ratios = np.array(times[segmenter]) / base
            shown.add_row(
                name,
                segmenter,
                *(f"{value:.4f}" for value in measures(counts)[:2]),
                f"{measures(counts)[2]:.4f} ± {spread(counts):.4f}",
                f"{np.median(ratios):.2f} ({ratios.min():.2f}–{ratios.max():.2f})",
            )
    return shown


def seconds(find: Segmenter, documents: Iterable[Document]) -> float:
    start = perf_counter()
    for text, _ in documents:
        list(find(text))
    return perf_counter() - start


def compared(find: Segmenter, text: str, starts: frozenset[int]) -> tuple[int, int, int]:
    found = []
    for start, end in find(text):
        if text[start:end].strip():
            found.append(end - len(text[start:end].lstrip()))
    own = set(found[1:])
    return len(own & starts), len(own - starts), len(starts - own)


def measures(counts: np.ndarray) -> tuple[float, float, float]:
    right, wrong, missed = counts.sum(axis=0)
    return (
        right / (right + wrong),
        right / (right + missed),
        2 * right / (2 * right + wrong + missed),
    )


def spread(counts: np.ndarray) -> float:
    rng = np.random.default_rng(0)
    draws = rng.integers(len(counts), size=(200, len(counts)))
    return float(np.std([measures(counts[drawn])[2] for drawn in draws]))


# --- exact ranges, and long texts -----------------------------------------------------------------


def exactness(folder: Path) -> str:
    checked = sentences = 0
    joined = []
    for name in ALL:
        for row in rows(folder / name / "corpus.jsonl.gz"):
            sentences += len(exact(row["text"]))
            checked += 1
            joined.append(row["text"])
    lines = [f"{checked} documents have {sentences} sentences, whose ranges are exact.", ""]
    long = {
        "real text, lines": "\n".join(joined),
        "real text, one line": " ".join(joined).replace("\n", " "),
        "这是一个句子，它不太长。": "这是一个句子，它不太长。",
        **{unit: unit for unit in ("a", "a. ", "\n", "|", "| a |\n", "文。", "```\n", "- a\n")},
    }
    lines += ["| 10 MB of | sentences | seconds | of 1 MB, times 10 |", "|---|---|---|---|"]
    for name, unit in long.items():
        taken = {}
        for size in (10**6, 10**7):
            text = (unit * (size // len(unit.encode()) + 1)).encode()[:size].decode(errors="ignore")
            start = perf_counter()
            found = OURS(text)
            taken[size] = perf_counter() - start
        ratio = taken[10**7] / taken[10**6] / 10
        lines.append(
            f"| {json.dumps(name, ensure_ascii=False)[1:-1]} | {len(found)} |"
            f" {taken[10**7]:.1f} | {ratio:.2f} |".replace("| |", "| \\|")
        )
    return "\n".join(lines)


def exact(text: str) -> tuple[tuple[int, int], ...]:
    ranges = OURS(text)
    for (_, end), (start, _) in pairwise([(0, 0), *ranges, (len(text), len(text))]):
        assert end <= start
        assert not text[end:start].strip()
    assert all(text[a:b] == text[a:b].strip() != "" for a, b in ranges) or not text.strip()
    return ranges


if __name__ == "__main__":
    main()
