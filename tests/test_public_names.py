"""What can be imported, what importing costs, and who imports whom."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = [*ROOT.glob("conformal_retrievers/**/*.py"), *ROOT.glob("integrations/*/*/**/*.py")]
LAYERS = [
    ("extras", "version"),
    ("theory", "data", "llm"),
    ("scoring", "labels"),
    ("calibration",),
    ("results", "filtering", "sentence_filter"),
    ("evaluation", "lookback"),
    ("monitoring",),
    ("cluster",),
    ("answers", "claims"),
    ("__init__",),
    ("integrations",),
    ("cli", "__main__"),
]
LEVEL = {room: level for level, layer in enumerate(LAYERS) for room in layer}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in SOURCES}


def room(module: str) -> str:
    """Return the package of the core that a module lies in, or `integrations`."""
    top, *inside = module.split(".")
    if top != "conformal_retrievers":
        return "integrations"
    return inside[0] if inside else "__init__"


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere, also within functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inside or {str(node.module)}
    return found


def test_modules_import_from_their_own_layer_or_below_without_a_circle():
    ours = re.compile(r"(conformal_retrievers|langchain_conformal|llama_index\.postprocessor)\b")
    arrows = {
        (importing, module)
        for importing, path in MODULES.items()
        for module in imports_of(path)
        if ours.match(module) and module != importing
    }
    between_rooms = {(room(a), room(b)) for a, b in arrows if room(a) != room(b)}
    assert not {(a, b) for a, b in between_rooms if LEVEL[b] > LEVEL[a]}
    for graph in (arrows, between_rooms):
        sorter = TopologicalSorter()
        for importing, imported in graph:
            sorter.add(importing, imported)
        sorter.prepare()  # raises CycleError


def test_the_packages_import_the_core_of_their_framework_alone():
    allowed = {*sys.stdlib_module_names, "conformal_retrievers", "numpy", "pydantic"}
    allowed |= {"pydantic_core", "typing_extensions", "langchain_conformal", "langchain_core"}
    for path in ROOT.glob("integrations/*/*/**/*.py"):
        for module in imports_of(path):
            inside = re.match(r"llama_index\.(core|postprocessor\.conformal)\b", module)
            of_agents = path.name == "tool.py" and module == "langgraph.prebuilt"  # in a function
            assert inside or of_agents or module.split(".")[0] in allowed, (path, module)


def test_the_core_imports_numpy_and_pydantic_and_nothing_heavier():
    code = """import sys
import conformal_retrievers
assert "numpy" not in sys.modules  # a name is imported when it is used
from conformal_retrievers import *
print(*{m.split(".")[0] for m in sys.modules})"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = "scipy sklearn torch pandas httpx openai typer rich jinja2 matplotlib regex sentencex"
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert not loaded & {*heavy.split(), "bm25s", "transformers", "sentence_transformers"}
