"""How many of the project's modules and functions a query passes, and a calibration.

One `invoke` of `ConformalRetriever` with the default score, behind a `HybridRetriever` of two that
return 20 documents each, with and without a callback handler; `calibrate` on 80 queries of that.
Counted are calls of Python functions whose file is the project's own.

    python -m benchmarks.way [CHECKOUT]
"""

import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(*sys.argv[1:2]).resolve()
PACKAGES = ("langchain-conformal", "llama-index-postprocessor-conformal")
# Before the imports, so that they are those of the checkout.
sys.path[:0] = [str(ROOT), *(str(ROOT / "integrations" / name) for name in PACKAGES)]

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from conformal_retrievers import JudgedQuery, calibrate
from langchain_conformal import ConformalRetriever, HybridRetriever, judge_retriever

TEXTS = [f"text number {i} about topic {i % 40} and word {i % 7}" for i in range(300)]


class Retriever(BaseRetriever):
    """Returns the document that has the query's number among its first three, and 19 others."""

    seed: int

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        own = int(query.split()[-1])
        drawn = random.Random(1000 * self.seed + own)
        places = drawn.sample([i for i in range(300) if i != own], 19)
        places.insert(drawn.randrange(3), own)
        return [
            Document(TEXTS[i], id=f"d{i}", metadata={"relevance_score": 1 - 0.04 * rank})
            for rank, i in enumerate(places)
        ]


def counted(call: Callable[[], Any]) -> str:
    modules, calls = set(), 0

    def observe(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(ROOT)) and "site-packages" not in file:
            modules.add(file)
            calls += 1

    sys.setprofile(observe)
    call()
    sys.setprofile(None)
    return f"{len(modules)} modules, {calls:,} calls"


def main() -> None:
    warnings.simplefilter("ignore")
    retriever = HybridRetriever({"dense": Retriever(seed=1), "bm25": Retriever(seed=2)})
    queries = [JudgedQuery.from_ids(f"what is topic {i}", [f"d{i}"], id=f"q{i}") for i in range(80)]
    judged = judge_retriever(retriever, queries)
    print("calibrate:", counted(lambda: calibrate(judged, alpha=0.1)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "calibration.json")
        calibrate(judged, alpha=0.1).save(path)
        filtered = ConformalRetriever.from_calibration(path, retriever=retriever)
    for name, callbacks in {"a query": [], "with a handler": [BaseCallbackHandler()]}.items():
        ask = partial(filtered.invoke, config={"callbacks": callbacks})
        ask("what is topic 90")  # what is computed once
        print(f"{name}:", counted(partial(ask, "what is topic 91")))


if __name__ == "__main__":
    main()
