"""How often a gate is silent: on answerable questions, without their answers, and off the topic.

Each data set is a folder in the BEIR layout. A dense retriever (all-MiniLM-L6-v2 over the whole
corpus) and BM25 (bm25s) return 20 snippets each, and their union is what was retrieved. Questions
to which something relevant was retrieved are answerable. The unanswerable ones are

    gold removed   the same questions, retrieved deeper, without their relevant snippets
    off topic      questions of another set; "in the fit" if others of that set were fitted on, and
                   "new" if none was, the mean over three such sets

All are dealt at random into three parts, 20 times, a question with and without its answers into
one. The first two make the gate at alpha = 0.05, with the questions of one other set, another one
in turn, and the third is gated. In %, the mean over the deals, with the interval of Clopper and
Pearson for so many questions. False silence is ± its standard error over the deals, which are
independent draws given the set; "holds" if it is at most alpha + 3 of these.

"Default" is calibrate_gate on the first two parts, of which a third fits. "Best cosine" and "prior
alone" are calibrated on the second, and with few answerable questions on 20 and 40 of them; without
unanswerable ones, nothing is fitted. The prior is made without the set and its relatives, see
`benchmarks/prior.py`. "Answerable to dense" counts as answerable only what the dense retriever
finds, where that differs by over 5 %. Three rules do not calibrate on the set: the threshold of the
best cosine that is silent on 5 % of the answerable questions of each other set, the mean over
these; the mean and one standard deviation of the best cosine of the off-topic questions in the fit;
a cosine of 0.3.

    python -m benchmarks.gate --data FOLDER [--sets scifact nq-open] [--cache FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import add_cache, add_data, parser_of
from benchmarks.default import cosines, united
from conformal_retrievers import JudgedQuery, Snippet, __version__
from conformal_retrievers.calibration.gates.calibrate_gate import calibrate_gate
from conformal_retrievers.data.beir import read_corpus, read_texts
from conformal_retrievers.data.hits import fuse
from conformal_retrievers.data.unanswerable import without_relevant
from conformal_retrievers.scoring import (
    BestScore,
    QueryScorer,
    RetrievalScorer,
)
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.query_scorer import query_scores
from conformal_retrievers.theory.tolerance import binomial_interval

SETS = ("scifact", "nq-open", "pubmedqa", "ragbench-hotpotqa")
# Silent on gold removed, and on questions of one other set, at which a first measurement was made.
TARGETS = {"scifact": (23, "nq-open"), "nq-open": (69, "pubmedqa"), "pubmedqa": (89, "scifact")}
OFF_TOPIC = 95
K = 20
MOST = 450  # questions of another set
ALPHA = 0.05
COSINE = BestScore(RetrievalScorer("dense"))
POPULATIONS: dict[str, Callable[[JudgedQuery], bool]] = {
    "": lambda query: any(query.relevant),
    ", answerable to dense": lambda q: bool((q.hits["dense"].ranks[[*q.relevant]] < K).any()),
}
Texts = dict[str, dict[str, str]]  # the questions of each set, by id
FEW = (20, 40)  # answerable questions, and no others
RULES = ("one cosine for all sets", "mean + sd of off-topic", "cosine 0.3")
RESULTS = Path(__file__).parent / "results" / "gate.md"


def main() -> None:
    arguments = parsed_arguments()
    console = Console(record=True, width=170)
    for part in sections(arguments):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    if arguments.write:
        lines = (line.rstrip() for line in console.export_text().splitlines())
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parsed_arguments() -> argparse.Namespace:
    parser = parser_of("benchmarks.gate", __doc__)
    add_data(parser)
    parser.add_argument("--sets", nargs="+", default=SETS, help="folders in it, also your own")
    parser.add_argument("--deals", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    add_cache(parser)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    return parser.parse_args()


def sections(arguments: argparse.Namespace) -> Iterator[str | Table]:
    """Yield the facts, and for each set and population its tables."""
    from benchmarks.prior import prior_without

    yield (
        f"# A gate for questions that nothing retrieved answers\n\nOver {arguments.deals} random "
        f"deals (seed {arguments.seed}), in %; {K} snippets each of dense and BM25; alpha = "
        f"{ALPHA:g}; conformal_retrievers {__version__}. `benchmarks/gate.py` says what is what."
    )
    with tempfile.TemporaryDirectory() as temporary:
        cache = arguments.cache or Path(temporary)
        known = {name: arguments.data / name for name in (*SETS, "wice", *arguments.sets)}
        asked = {name: read_texts(folder) for name, folder in known.items() if folder.is_dir()}
        deep = {n: united(known[n], cache) for n in asked if n != "wice" or n in arguments.sets}
        everything = {n: data_of(known[n], deep[n], asked, cache) for n in arguments.sets}
        priors = {
            name: prior_without(name, "queries", arguments.data, cache) for name in everything
        }
    thresholds = {name: threshold_of(queries) for name, queries in deep.items()}
    for name, data in everything.items():
        elsewhere = np.mean([other for key, other in thresholds.items() if key != name])
        for population, counts in POPULATIONS.items():
            answerable = np.array([counts(query) for query in data.asked])
            if population and answerable.sum() > 0.95 * sum(any(q.relevant) for q in data.asked):
                continue
            yield f"\n## {name}{population}\n"
            yield f"{len(answerable)} questions, {answerable.sum()} of them answerable."
            rng = np.random.default_rng(arguments.seed)
            prior = priors[name]
            with patch("conformal_retrievers.scoring.learned.queries.prior_of", return_value=prior):
                deals = [
                    one_deal(data, answerable, i, rng, float(elsewhere))
                    for i in range(arguments.deals)
                ]
            yield from tables(name, data, deals)


# --- the data -------------------------------------------------------------------------------------


class Data(NamedTuple):
    """The questions of a set, with and without their answers, and those of other sets."""

    asked: list[JudgedQuery]  # also those to which nothing relevant was retrieved
    removed: list[JudgedQuery]
    off_topic: dict[str, list[JudgedQuery]]
    cosine: QueryScorer  # which has scored all of them


def threshold_of(queries: Sequence[JudgedQuery]) -> float:
    """Return the threshold of the best cosine that is silent on a share alpha of the queries."""
    best = query_scores(COSINE, [query for query in queries if any(query.relevant)])
    return float(np.quantile(best, 1 - ALPHA))


def data_of(folder: Path, deep: Sequence[JudgedQuery], of_sets: Texts, cache: Path) -> Data:
    asked, removed = [first(query) for query in deep], [without_relevant(q, K) for q in deep]
    others = {name: [*of.values()] for name, of in of_sets.items() if name != folder.name}
    off_topic = {name: foreign(folder, of, cache) for name, of in others.items()}
    everything = [*asked, *removed, *(query for of in off_topic.values() for query in of)]
    return Data(asked, removed, off_topic, RememberedQuery(COSINE, everything))


def first(query: JudgedQuery) -> JudgedQuery:
    """Return the query as retrieved at depth K."""
    relevant = {s.id for s, r in zip(query.snippets, query.relevant, strict=True) if r}
    cut = without_relevant(replace(query, relevant=(False,) * len(query.snippets)), K)
    return replace(cut, relevant=tuple(s.id in relevant for s in cut.snippets), answerable=True)


def foreign(
    folder: Path, questions: Sequence[str], cache: Path, most: int = MOST
) -> list[JudgedQuery]:
    """Return questions of another set, at most so many, with what is retrieved for them."""
    corpus, asked = read_corpus(folder), {text: text for text in questions}
    ids, bm25 = [*corpus], BM25Scorer(corpus.values())
    place = {text: i for i, text in enumerate(bm25.corpus)}
    places = [place[text] for text in corpus.values()]
    chosen = {*np.random.default_rng(0).permutation([*asked])[:most].tolist()}
    queries = []
    for query, cosine in zip(asked, cosines(corpus, asked, cache), strict=True):
        if query in chosen:
            similarities = {"dense": cosine, "bm25": bm25.similarities(query)[places]}
            lists = {}
            for retriever, of in similarities.items():
                best = np.argsort(-of, kind="stable")[:K]
                lists[retriever] = [(ids[i], float(of[i])) for i in best if of[i] > 0]
            snippets = [Snippet(corpus[d], d, hits=hits) for d, hits in fuse(lists).items()]
            queries.append(JudgedQuery(query, snippets, [False] * len(snippets), answerable=False))
    return queries


class RememberedQuery:
    """A query scorer that has scored some queries, once each; it scores only those."""

    def __init__(self, scorer: QueryScorer, judged: Sequence[JudgedQuery]) -> None:
        self.name = scorer.name
        scores = query_scores(scorer, judged)
        keys = [(query.query, query.snippets) for query in judged]
        self._known: dict[object, float] = dict(zip(keys, scores.tolist(), strict=True))

    def score_query(self, query: str, snippets: Sequence[Snippet]) -> float:
        """Return the score that the scorer gave."""
        return self._known[query, tuple(snippets)]


# --- one deal -------------------------------------------------------------------------------------


class Deal(NamedTuple):
    """The rates of silence of one deal, by score and by kind of question."""

    source: str  # the other set that was fitted on
    silent: dict[str, dict[str, float]]


def one_deal(
    data: Data, answerable: NDArray[np.bool_], i: int, rng: np.random.Generator, elsewhere: float
) -> Deal:
    dealt = np.array_split(rng.permutation(len(data.asked)), 3)
    others = {s: np.array_split(rng.permutation(len(q)), 3) for s, q in data.off_topic.items()}
    source = [*others][i % len(others)]

    def part(j: int) -> tuple[list[JudgedQuery], dict[str, list[JudgedQuery]]]:
        removed = {"gold removed": [data.removed[k] for k in dealt[j]]}
        foreign = {s: [of[k] for k in others[s][j]] for s, of in data.off_topic.items()}
        return [data.asked[k] for k in dealt[j] if answerable[k]], removed | foreign

    (fit, fit_not), (calibrating, calibrating_not), (new, new_not) = map(part, range(3))
    known = ("gold removed", source)
    both = {s: [*fit_not[s], *calibrating_not[s]] for s in known}
    gates = {
        "best cosine": calibrate_gate(calibrating, (), data.cosine, alpha=ALPHA),
        "prior alone": calibrate_gate(calibrating, (), alpha=ALPHA),
        "default": calibrate_gate([*fit, *calibrating], both, alpha=ALPHA),
    }
    for n in FEW:
        few = calibrating[:n]
        gates[f"best cosine, {n}"] = calibrate_gate(few, (), data.cosine, alpha=ALPHA)
        gates[f"default, {n}"] = calibrate_gate(few, (), alpha=ALPHA)
    off_topic = query_scores(data.cosine, fit_not[source])
    thresholds = (elsewhere, float(np.nanmean(off_topic) - np.nanstd(off_topic)), -0.3)
    silent = {
        name: silence(gate.scorer, gate.calibration.threshold(), new, new_not)
        for name, gate in gates.items()
    }
    for name, threshold in zip(RULES, thresholds, strict=True):
        silent[name] = silence(data.cosine, threshold, new, new_not)
    return Deal(source, silent)


def silence(
    scorer: QueryScorer,
    threshold: float,
    answerable: Sequence[JudgedQuery],
    unanswerable: Mapping[str, Sequence[JudgedQuery]],
) -> dict[str, float]:
    return {
        kind: float(np.mean(query_scores(scorer, queries) > threshold))
        for kind, queries in {"answerable": answerable, **unanswerable}.items()
    }


# --- tables ---------------------------------------------------------------------------------------


def tables(name: str, data: Data, deals: Sequence[Deal]) -> Iterator[str | Table]:
    """Yield the rates of each score, and those of the default by set."""
    of_scores, of_sets = Table(box=box.MARKDOWN), Table(box=box.MARKDOWN)
    for heading in ("score", "false silence", "holds", "gold removed", "off topic: in fit", "new"):
        of_scores.add_column(heading, no_wrap=True)
    for heading in ("default, off topic", "in the fit", "new"):
        of_sets.add_column(heading, no_wrap=True)
    sizes = {source: len(queries) for source, queries in data.off_topic.items()}
    for score in deals[0].silent:
        of = [(deal.source, deal.silent[score]) for deal in deals]
        false = np.array([silent["answerable"] for _, silent in of])
        se = false.std(ddof=1) / np.sqrt(len(false))
        holds = "yes" if false.mean() <= ALPHA + 3 * se else "NO"
        new = [float(np.mean([silent[s] for s in sizes if s != source])) for source, silent in of]
        of_scores.add_row(
            score,
            f"{100 * false.mean():.1f} ± {100 * se:.1f}",
            "" if score in RULES else holds,
            interval([silent["gold removed"] for _, silent in of], len(data.removed)),
            interval([silent[source] for source, silent in of], sum(sizes.values())),
            interval(new, sum(sizes.values())),
        )
    rates = [(deal.source, deal.silent["default"]) for deal in deals]
    for one, n in sizes.items():
        fitted, others = (
            [silent[one] for source, silent in rates if (source == one) == inside]
            for inside in (True, False)
        )
        of_sets.add_row(one, *(interval(of, n) if of else "" for of in (fitted, others)))
    yield of_scores
    yield of_sets
    if name in TARGETS:
        least, source = TARGETS[name]
        for kind, target in (("gold removed", least), (source, OFF_TOPIC)):
            mean = 100 * np.mean([silent[kind] for _, silent in rates])
            reached = "yes" if mean >= target else "NO"
            yield f"- default, silent on {kind}: {mean:.1f}; target {target}: {reached}"


def interval(rates: Sequence[float], n: int) -> str:
    mean = float(np.mean(rates))
    _, low, high = binomial_interval(round(mean * n), n)
    return f"{100 * mean:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


if __name__ == "__main__":
    main()
