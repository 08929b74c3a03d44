"""What goes into the commands: judged queries from a file or a BEIR folder, and a scorer."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from conformal_retrievers.beir import FILES, read_beir, read_corpus
from conformal_retrievers.calibration import Calibration
from conformal_retrievers.conformal import exact_alpha
from conformal_retrievers.events import is_event, scores_of
from conformal_retrievers.extras import require
from conformal_retrievers.filter_log import read_log
from conformal_retrievers.filtering import Filtered
from conformal_retrievers.flag_statement import is_flag
from conformal_retrievers.guarantees import Guarantee
from conformal_retrievers.jsonl import iter_jsonl
from conformal_retrievers.judged import JudgedQuery, ScoredQuery
from conformal_retrievers.scoring import (
    EmbeddingScorer,
    RetrievalScorer,
    Scorer,
    score_queries,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# --- options that commands share ------------------------------------------------------------------

Alpha = Annotated[
    float, typer.Option(help="The miscoverage rate, between 0 and 1.", metavar="RATE")
]
Delta = Annotated[
    float | None,
    typer.Option(help="The share of calibrations that may fall short.", metavar="SHARE"),
]
GuaranteeOption = Annotated[
    Guarantee,
    typer.Option(
        help="What 1 - alpha is a probability of: query-recall, snippet, all or any.",
        metavar="NAME",
    ),
]
Judged = Annotated[
    Path,
    typer.Argument(
        help="Judged queries: a file of JSON lines (.jsonl, .jsonl.gz), or a BEIR folder.",
        exists=True,
        metavar="JUDGED",
    ),
]
OptionalJudged = Annotated[
    Path | None,
    typer.Argument(
        help="Judged queries: a file of JSON lines (.jsonl, .jsonl.gz), or a BEIR folder.",
        exists=True,
        metavar="JUDGED",
    ),
]
Run = Annotated[
    str | None,
    typer.Option(help="What a retriever found: a run file, for a BEIR folder.", metavar="FILE"),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--k", help="How many snippets of each query count, of a run file.", min=1, metavar="K"
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="For embedding: a sentence-transformers model, a path or a name.",
        metavar="PATH_OR_NAME",
    ),
]
Corpus = Annotated[
    Path | None,
    typer.Option(
        help="For bm25: the texts that may be retrieved, as corpus.jsonl of a BEIR folder. A "
        "snippet is found in it by its text: title, a space and text, to the letter.",
        exists=True,
        metavar="FILE",
    ),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        help="The judged queries that were calibrated on (others in it do not count): what m2, and "
        "m1 and m2 over K, are held against.",
        exists=True,
        metavar="JUDGED",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.", metavar="")]


def checked_alpha(alpha: float) -> None:
    """Exit with 2 unless alpha is a rate strictly between 0 and 1."""
    try:
        exact_alpha(alpha)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--alpha") from None


def check_out(out: Path, *given: Path | None, run: str | None = None) -> None:
    """Exit with 2 where the file to write is one that is read: what is given, or in a BEIR folder.

    A link to one of them is one of them.
    """
    if not out.exists():
        return
    for path in given:
        if path is None:
            continue
        inside = [path / name for name in FILES] if path.is_dir() else [path]
        if run is not None:
            inside += [Path(run), path / run, path / f"{run}.gz"]
        read = next((file for file in inside if file.exists() and out.samefile(file)), None)
        if read is not None:
            raise typer.BadParameter(
                f"{out} is {read}, which is read; give another file to write to",
                param_hint="--out",
            )


# --- judged queries -------------------------------------------------------------------------------


def judged_queries(path: Path, run: str | None, k: int | None) -> Iterable[JudgedQuery]:
    """Return the judged queries of a file, as a stream, or those of a BEIR folder and a run.

    Exits with 2 where a folder comes without a run, or a file with one.
    """
    if path.is_dir():
        if run is None:
            raise typer.BadParameter(
                f"{path} is a folder; say with --run FILE what a retriever found in it"
            )
        return _some(path, read_beir(path, run, k=k))
    if run is not None or k is not None:
        raise typer.BadParameter(
            f"{path} is a file, which holds what was retrieved; --run and --k are for BEIR folders"
        )
    return _some(path, iter_jsonl(path))


def _some(path: Path, queries: Iterable[JudgedQuery]) -> Iterator[JudgedQuery]:
    none = True
    for query in queries:
        none = False
        yield query
    if none:
        raise ValueError(f"{path} holds no query; give a file with a judged query on each line")


def depth_of(calibration: Calibration, run: str | None, k: int | None) -> int | None:
    """Return how many snippets of a run count: what is asked for, or what was calibrated with."""
    return calibration.k if k is None and run is not None else k


def calibration_of_snippets(path: Path) -> Calibration:
    """Read a calibration for retrieval. Raises ValueError, with what to use, for one of answers."""
    if is_of_claims(path):
        raise ValueError(
            f"{path} is a calibration of claims, not of snippets; use `conformal-retrievers claims "
            "evaluate`, or `conformal-retrievers show`"
        )
    calibration = Calibration.load(path)
    if is_flag(calibration):
        raise ValueError(
            f"{path} is the calibration of a flag for answers, not of snippets; use "
            "FactualityFlag.evaluate(answers) in Python, or `conformal-retrievers show`"
        )
    return calibration


def is_of_claims(path: Path) -> bool:
    """Return whether a file says that it is a calibration of claims; of a pipe nobody can tell."""
    from conformal_retrievers.claims.file import FORMAT

    if not path.is_file():
        return False
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False  # loading it says what is wrong
    return isinstance(fields, dict) and fields.get("format") == FORMAT


class NewQueries:
    """The queries that a calibration was not made from, read once, and how many it was."""

    why = "that the calibration was made from"

    def __init__(self, judged: Iterable[JudgedQuery], calibration: Calibration) -> None:
        self.judged = judged
        self.known = calibration.ids
        self.left_out = 0

    def __iter__(self) -> Iterator[JudgedQuery]:
        some = False
        for query in self.judged:
            if query.id in self.known:
                self.left_out += 1
                continue
            some = True
            yield query
        if self.left_out and not some:
            raise ValueError(
                f"all {self.left_out} queries are those that the calibration was made from, by id; "
                "evaluate on others, or calibrate with --hold-out 0.5 and evaluate on the rest"
            )


def reference_queries(
    path: Path | None, run: str | None, k: int | None, calibration: Calibration
) -> list[JudgedQuery] | None:
    """Return those queries of a file that the calibration was made from, None without a file.

    All of them where the calibration knows no id. Raises ValueError where it knows none of these.
    """
    if path is None:
        return None
    known, given = calibration.ids, list(judged_queries(path, run if path.is_dir() else None, k))
    own = [query for query in given if query.id in known] if known else given
    if not own:
        raise ValueError(
            f"{path}: the calibration was made from none of its {len(given)} queries, by id; give "
            "as --reference the file that it was made from"
        )
    return own


class LoggedQueries:
    """What a filter decided with a calibration, from its log, and how often with another one.

    A query that is filtered again, as by an agent that retries, is not another one: the first time
    counts, and how many came again is counted. Of a log without queries nobody can tell.
    """

    why = "filtered with another calibration"

    def __init__(self, path: Path, calibration: Calibration) -> None:
        self.path = path
        self.calibration = calibration
        self._checksums: dict[float, str | None] = {calibration.alpha: calibration.checksum}
        self.left_out = self.repeated = 0

    def __iter__(self) -> Iterator[Filtered]:
        some = False
        seen: set[str] = set()
        for event in read_log(self.path):
            if event["calibration"] != self._checksum_at(event.get("alpha")):
                self.left_out += 1
                continue
            some = True
            if (query := event.get("query")) is not None:
                if query in seen:
                    self.repeated += 1
                    continue
                seen.add(query)
            scores, group = scores_of(event), event.get("group")
            keeps = self.calibration.keep(scores, group)
            yield Filtered(scores, keeps, self.calibration, group)
        if not some and not self.left_out:
            raise ValueError(f"{self.path} holds no query that was filtered; filter some first")
        if not some:
            queries = "query" if self.left_out == 1 else "queries"
            raise ValueError(
                f"{self.path}: none of its {self.left_out} {queries} was filtered with this "
                "calibration; give the one whose checksum is in the log's field 'calibration'"
            )

    def _checksum_at(self, alpha: object) -> str | None:
        """Return what the calibration is called at the alpha of an event, which may be its own.

        None where it cannot be had at this alpha: the event is another calibration's.
        """
        if not isinstance(alpha, float) or not 0 < alpha < 1:
            return self.calibration.checksum
        if alpha not in self._checksums:
            try:
                self._checksums[alpha] = self.calibration.at(alpha).checksum
            except ValueError:  # too few queries for delta at this alpha
                self._checksums[alpha] = None
        return self._checksums[alpha]


def is_filter_log(path: Path) -> bool:
    """Return whether a file's first line is an event of a filter, by whatever name it is given.

    A pipe is none: what is read from it is gone.
    """
    if not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):  # whoever reads it says what is the matter
        return False
    return is_event(first)


def scored(scorer: Scorer, queries: Iterable[JudgedQuery]) -> Iterator[ScoredQuery]:
    """Yield the queries scored, one by one, so that no text is held any longer."""
    for query in queries:
        yield from score_queries(scorer, [query])


# --- scorers --------------------------------------------------------------------------------------


def retrieval_scorer(retriever: str, better: Literal["higher", "lower"] | None) -> Scorer:
    """Return the scorer by the retriever's own numbers; exits with 2 without their direction."""
    if better is None:
        raise typer.BadParameter(
            "say which of the retriever's numbers are better: --better higher for similarities, "
            "--better lower for distances"
        )
    return RetrievalScorer(retriever, higher_is_better=better == "higher")


def bm25_scorer(corpus: Path | None, judged: Path) -> Scorer:
    """Return the BM25 scorer of a corpus, by default that of the BEIR folder of the queries.

    Exits with 2 where there is none.
    """
    if corpus is None and not judged.is_dir():
        raise typer.BadParameter("bm25 weighs words by a corpus; name it with --corpus FILE")
    from conformal_retrievers.scoring.bm25 import BM25Scorer

    return BM25Scorer(read_corpus(corpus or judged).values())


def embedding_scorer(model: str | None, name: str | None = None) -> EmbeddingScorer:
    """Return the cosine scorer of a sentence-transformers model; exits with 2 without one.

    `name` is what the scorer is called where the model lies under another path now.
    """
    if model is None:
        raise typer.BadParameter("embedding needs a model; name it with --model PATH_OR_NAME")
    require("embedding", "sentence_transformers")
    if name is None and Path(model).exists():
        warnings.warn(
            f"the calibration names its scorer 'cosine({model})', by a path, and a chain whose "
            "model has another name will refuse it; say with --name what the model is called "
            "there, such as all-MiniLM-L6-v2",
            UserWarning,
            stacklevel=2,
        )
    encoder = _sentence_transformer(model)
    return EmbeddingScorer(
        lambda texts: encoder.encode(texts, show_progress_bar=False), name or f"cosine({model})"
    )


def _sentence_transformer(model: str) -> SentenceTransformer:
    """Return the model from a folder, the cache or the hub; raises ValueError if in neither."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading weights
    if Path(model).exists():
        return SentenceTransformer(model, local_files_only=True)
    try:
        return SentenceTransformer(model, local_files_only=True)
    except (OSError, ValueError) as error:
        missing = error
    why = "there is no such folder, and the Hugging Face hub has no such model"
    for name in (model,) if "/" in model else (f"sentence-transformers/{model}", model):
        try:  # asked once, so that a misspelt name or a hub out of reach is told at once
            HfApi().model_info(name, timeout=10)
        except HFValidationError:
            why = "there is no such folder"
        except RepositoryNotFoundError:
            continue
        except Exception:  # whatever its client raises where it cannot connect
            why = "there is no such folder nor downloaded model, and the hub cannot be reached"
        else:
            return SentenceTransformer(model)
    raise ValueError(
        f"model {model!r} cannot be loaded: {why}; give with --model the folder of a "
        "sentence-transformers model, or its name on the hub"
    ) from missing


def scorer_named(name: str, *, model: str | None, corpus: Path | None, judged: Path) -> Scorer:
    """Return the scorer that a calibration names, from its name and what it cannot say.

    Raises ValueError for a scorer that is made in Python only.
    """
    retrieval = re.fullmatch(r"retrieval\((.*), (higher|lower)\)", name)
    if retrieval:
        return RetrievalScorer(retrieval[1], higher_is_better=retrieval[2] == "higher")
    cosine = re.fullmatch(r"cosine\((.*)\)", name)
    if cosine:
        return embedding_scorer(model or cosine[1], name)
    if name.startswith("bm25s("):
        return bm25_scorer(corpus, judged)
    raise ValueError(
        f"the calibration was made with scorer {name!r}, which the command line cannot make; "
        "evaluate in Python: evaluate(ConformalFilter(scorer, calibration), judged)"
    )
