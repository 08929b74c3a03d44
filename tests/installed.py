"""Run the LangChain block of the README with the wheels: python tests/installed.py README.md

`make release` runs it in an environment that has the wheels and nothing of the checkout.
"""

import re
import sys
from pathlib import Path

from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.cli.searches import DocumentRetriever, searches_in


def main(readme: Path) -> None:
    """Run the block, and print how many snippets it keeps."""
    corpus = docstring_corpus()
    one, other = (DocumentRetriever(search=search) for search in searches_in(corpus).values())
    names = {
        "dense": one,
        "bm25": other,
        "queries": corpus.questions[::2],
        "question": corpus.questions[1].query,
    }
    text = readme.read_text(encoding="utf-8")
    (block,) = re.findall(
        r"^```python\n(.*?)^```", text.split("\n## LangChain\n")[1].split("\n## ")[0], re.S | re.M
    )
    exec(block, names)
    kept, retrieved = (len(names[of].invoke(names["question"])) for of in ("filtered", "retriever"))
    print(f"The README's code kept {kept} of {retrieved} snippets")
    assert 0 < kept < retrieved


if __name__ == "__main__":
    main(Path(sys.argv[1]))
