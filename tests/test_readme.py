"""The Python code of the README, of docs/ and of the packages' READMEs runs as it stands.

`reader.py` has what a reader has already. A page that says "continues the README's for LangChain",
or LlamaIndex, runs with the names that this section leaves, and with those that its prose gives in
backticks: as one pastes it. A block that cannot run here has a comment on the line before it:
`<!-- not run: why -->`. A block of text below one is what it prints on Python 3.11.
"""

import contextlib
import io
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
import reader
from llama_index.core import Settings
from llama_index.core.instrumentation import get_dispatcher

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PACKAGES = sorted(ROOT.glob("integrations/*/README.md"))
PAGES = sorted([*ROOT.glob("docs/*.md"), *PACKAGES])
BLOCK = re.compile(
    r"^(?:<!-- (not run: .+) -->\n)?```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.S | re.M
)
CONTINUES = re.compile(r"continues\s+the\s+README's\s+for\s+(LangChain|LlamaIndex)")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


def run(page: Path, names: dict[str, object], section: str = "") -> dict[str, object]:
    """Run the blocks of a page, or of a section, in order, and return the names that they leave."""
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        above = text[: block.start()].rpartition("\n## ")[2]
        if not block[1] and above.startswith(section):
            above = "\n" * (text.count("\n", 0, block.start(2)))  # for the lines of a traceback
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(above + block[2], str(page), "exec", dont_inherit=True), names)
            if block[3] and sys.version_info[:2] == (3, 11):  # other docstrings, other numbers
                assert_prints(block[3], printed.getvalue())
    return names


def assert_prints(expected: str, printed: str) -> None:
    """Compare what a page shows, where "…" stands for any text, with what its code prints."""
    text, shown = " ".join(printed.split()), " ".join(expected.split())
    parts = [re.escape(NUMBER.sub("0", part.strip())) for part in shown.split("…")]
    pattern = ".*".join(part.replace("0", rf"(?<![\d.])({NUMBER.pattern})") for part in parts)
    found = re.fullmatch(pattern, text, re.S)
    assert found, f"{shown}\n--- is not what is printed: ---\n{text}"
    numbers = zip(NUMBER.findall(shown), found.groups(), strict=True)
    different = [(a, b) for a, b in numbers if not near(a, b)]
    assert not different, f"{different} of {text}"


def near(shown: str, printed: str) -> bool:
    """Whether numbers differ by 2 % or two of the last digit shown, or powers of ten by one."""
    if "e" in shown:
        return abs(int(shown.split("e")[1]) - math.floor(math.log10(float(printed)))) <= 1
    digits = len(shown.partition(".")[2])
    return float(shown) == pytest.approx(float(printed), 0.02, min(0.2, 2.001 * 10**-digits))


def given(page: Path) -> dict[str, object]:
    """Return what the prose of a page says that its reader has, in backticks."""
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return {name: value for name, value in reader.before().items() if f"`{name}`" in prose}


@pytest.fixture(autouse=True, scope="module")
def _handlers_stay_here():
    root = get_dispatcher()
    before = list(root.event_handlers)
    yield
    root.event_handlers = before


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """The names that the README leaves, by section and all, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        left = {s: run(README, given(README), f"{s}\n") for s in ("LangChain", "LlamaIndex")}
        names = reader.before() | left["LangChain"] | left["LlamaIndex"]
        return left | {"": names | reader.after(names["filtered"].retriever)}, folder


@pytest.mark.slow
def test_the_code_of_the_readme_keeps_some_snippets_and_drops_others_in_both_frameworks(readme):
    names, folder = readme[0][""], readme[1]
    kept = names["filtered"].invoke(names["question"])
    assert 0 < len(kept) < len(names["retriever"].invoke(names["question"]))
    assert 0 < len(names["engine"].query(names["question"]).source_nodes) < reader.K
    assert {"calibration.json", "nodes.json"} <= {path.name for path in folder.iterdir()}


def test_the_first_lines_fit_on_one_screen():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 130
    for page in PACKAGES:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 120
    sections = re.split(r"^## ", README.read_text(encoding="utf-8"), flags=re.M)
    for framework in ("LangChain", "LlamaIndex"):
        (section,) = (text for text in sections if text.startswith(f"{framework}\n"))
        (lines,) = (block[2].splitlines() for block in BLOCK.finditer(section))
        assert len([line for line in lines if line.strip() and not line.startswith("#")]) <= 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [  # test_start.py runs the first page alone
        page
        for page in PAGES
        if BLOCK.search(page.read_text(encoding="utf-8")) and page.stem != "start"
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_code_of_a_page_runs_after_that_of_the_readme(page, readme, tmp_path, monkeypatch):
    names, folder = readme
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Settings, "_llm", names[""]["llm"])
    continued = CONTINUES.search(page.read_text(encoding="utf-8"))
    left = run(page, names[continued[1]] | given(page) if continued else dict(names[""]))
    for instrumentor in ("LlamaIndexInstrumentor", "LangChainInstrumentor"):
        if instrumentor in left:  # they would trace the other pages too
            left[instrumentor]().uninstrument()


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if "://" not in link]
    assert all((page.parent / link).exists() for link in inside), inside
