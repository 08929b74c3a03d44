"""What surrounds the code: extras, versions, workflows, and the text of every file."""

import ast
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from conformal_retrievers import ConformalFilter, JudgedQuery, Snippet, __version__, calibrate
from conformal_retrievers.extras import require

toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parent.parent
PROJECT = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGES = sorted(ROOT.glob("integrations/*/pyproject.toml"))


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def named(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0].replace("-", "_")


def test_the_extra_all_has_each_of_the_others_which_are_six_at_most():
    others = sorted(EXTRAS.keys() - {"all"})
    assert len(others) <= 6
    assert EXTRAS["all"] == [f"conformal-retrievers[{','.join(others)}]"]


def test_what_the_code_requires_is_in_the_extra_that_it_names():
    calls = [
        [argument.value for argument in node.args]
        for path in ROOT.glob("conformal_retrievers/**/*.py")
        if path.name != "extras.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require"
    ]
    assert len(calls) > 10
    for extra, *modules in calls:
        assert set(modules) <= {named(one) for one in EXTRAS[extra]}, extra


def test_the_message_about_a_missing_library_has_the_command_that_installs_it(monkeypatch):
    for extra in EXTRAS.keys() - {"all"}:
        for module in map(named, EXTRAS[extra]):
            command = re.escape(f'pip install "conformal-retrievers[{extra}]"')
            monkeypatch.setitem(sys.modules, module, None)
            with pytest.raises(ModuleNotFoundError, match=command):
                require(extra, module)


def test_the_three_distributions_and_the_citation_have_one_version():
    assert "version" in PROJECT["dynamic"]
    for path in PACKAGES:
        package = toml.loads(path.read_text(encoding="utf-8"))
        assert "version" in package["project"]["dynamic"]
        source = path.parent / package["tool"]["hatch"]["version"]["path"]
        assert source.resolve() == ROOT / "conformal_retrievers/version.py"
        assert package["project"]["urls"] == PROJECT["urls"]
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_links_of_the_readmes_are_whole_addresses_on_pypi():
    for path in [ROOT / "pyproject.toml", *PACKAGES]:
        hooks = toml.loads(path.read_text(encoding="utf-8"))["tool"]["hatch"]["metadata"]["hooks"]
        text = (path.parent / "README.md").read_text(encoding="utf-8")
        for one in hooks["fancy-pypi-readme"]["substitutions"]:
            text = re.sub(one["pattern"], one["replacement"], text)
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert len(links) > 4
        assert [link for link in links if not link.startswith("https://") or ".." in link] == []


def test_workflows_and_the_contributors_page_name_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    text = "".join(path.read_text("utf-8") for path in sorted(ROOT.glob(".github/workflows/*.yml")))
    commands = re.findall(r"run: (.+)", text)
    assert len(commands) >= 6
    for command in commands:
        target = re.fullmatch(r"make ([\w-]+?)(?:-\$\{\{ .+ \}\})?", command)[1]
        assert target == "matrix" or target in targets, command
    versions = re.search(r"versions: \[(.+)\]", text)[1].split(", ")
    tested = re.search(r"^test-matrix: (.+?) ##", makefile, re.M)[1].split()
    assert {f"matrix-{version}" for version in versions} == {*tested}
    assert set(re.findall(r"^\| `make ([\w-]+)`", CONTRIBUTING, re.M)) == targets - {"PHONY"}


def test_the_scorer_of_the_contributors_page_calibrates_and_filters():
    (code,) = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING, re.M | re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    names: dict[str, object] = {}
    exec(code, names)
    scorer = names["NumbersScorer"]()
    judged = [
        JudgedQuery(
            f"What happened in {year}?",
            [Snippet(f"In {year}, it rained."), Snippet(f"In {year + 50}, it did not.")],
            [True, False],
            id=str(year),
        )
        for year in range(1900, 1940)
    ]
    conformal = ConformalFilter(scorer, calibrate(judged, scorer, alpha=0.1))
    assert list(conformal("Was 1987 warm?", ["1987 was warm.", "2001 was not."]).kept) == [0]


def test_every_mutant_fits_one_place_of_its_file():
    mutants = runpy.run_path(str(ROOT / "benchmarks/mutants.py"))
    fits, one = mutants["fits"], mutants["Mutant"]
    rows = [one(file, *row) for file, rows in mutants["MUTANTS"].items() for row in rows]
    assert [mutant for mutant in rows if not fits(mutant)] == []


def test_each_test_that_the_page_for_statisticians_names_is_there():
    page = (ROOT / "docs/statisticians.md").read_text(encoding="utf-8")
    named = re.findall(r"^- `(tests/\S+\.py)`:((?:\s+`test_\w+`,?)+)", page, re.M)
    assert len(named) > 5
    for file, names in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"test_\w+", names):
            assert f"def {name}(" in text, name


def test_no_file_names_a_path_of_a_machine_or_a_host_of_a_registry():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    pattern = re.compile(
        r"/(?:root|home|work|opt/pypi)/|files\.pythonhosted|(?:index|find)-(?:url|links)"
    )
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if path.is_file() and path.suffix not in {".png", ".parquet", ".gz"}:
            found = pattern.search(path.read_text(encoding="utf-8", errors="ignore"))
            assert not found, f"{name} has {found[0]}"
