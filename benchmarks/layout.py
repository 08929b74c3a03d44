"""The size and the shape of the code: lines by package, modules, imports between them, circles.

Lines are of code: no blank ones, no comments, no docstrings.

    python -m benchmarks.layout [FOLDER]     FOLDER is a checkout, by default the current folder

A circle is a set of modules that import each other, directly or not, in a function or for a type
too. Import time is the median of ten pairs of processes, against `import numpy, pydantic`, and
against the same with a first model, since pydantic loads most of itself when it makes one.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import time
import tokenize
from collections import Counter
from pathlib import Path
from statistics import median

PACKAGE = "conformal_retrievers"
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}

OTHERS = {
    "import numpy, pydantic": "import numpy, pydantic",
    "with a model": "import numpy, pydantic\nclass Model(pydantic.BaseModel):\n    number: int",
}


def lines(paths: list[Path]) -> int:
    """Return the number of lines of code."""
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in paths)


def code_lines(source: str) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    docstrings = [node.body[0] for node in nodes if ast.get_docstring(node)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in docstrings:
        code -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(code)


def imports(root: Path) -> dict[str, set[str]]:
    """Return the modules of the core that each of its modules imports anywhere."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / PACKAGE).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                deep = {f"{node.module}.{alias.name}" for alias in node.names} & set(files)
                found |= deep or ({node.module} & set(files))
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & set(files)
        graph[module] = found - {module}
    return graph


def circles(graph: dict[str, set[str]]) -> int:
    """Return the number of strongly connected components with more than one module."""
    reach = {module: _reachable(graph, module) for module in graph}
    groups = {frozenset(m for m in reach[module] if module in reach[m]) for module in graph}
    return sum(len(group) > 1 for group in groups)


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen, waiting = set(), [start]
    while waiting:
        for module in graph[waiting.pop()] - seen:
            seen.add(module)
            waiting.append(module)
    return seen


def import_ratio(root: Path, statement: str, other: str) -> float:
    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
        return time.perf_counter() - start

    pairs = [(seconds(statement), seconds(other)) for _ in range(10)]
    return median(ours / others for ours, others in pairs)


def main(root: Path) -> None:
    core = Counter[str]()
    for path in (root / PACKAGE).rglob("*.py"):
        parts = path.relative_to(root / PACKAGE).parts
        core[parts[0] if len(parts) > 1 else "(top level)"] += lines([path])
    for name, count in sorted(core.items()):
        print(f"{name:<14} {count:>6}")
    graph = imports(root)
    top = ast.parse((root / PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
    assigned = [node for node in top if isinstance(node, ast.Assign)]
    names = next(len(n.value.elts) for n in assigned if isinstance(n.value, ast.List))
    print(f"core           {sum(core.values()):>6} lines in {len(graph)} modules")
    print(f"packages       {lines([*(root / 'integrations').rglob('*.py')]):>6}")
    print(f"tests          {lines([*(root / 'tests').rglob('*.py')]):>6}")
    print(f"imports        {sum(map(len, graph.values())):>6}, {circles(graph)} circles")
    print(f"public names   {names:>6}")
    for statement in (f"import {PACKAGE}", f"from {PACKAGE} import ConformalFilter, calibrate"):
        for what, other in OTHERS.items():
            print(
                f"{statement}: {import_ratio(root, statement, other):.2f} times as long as {what}"
            )


if __name__ == "__main__":
    main(Path(*sys.argv[1:2]).resolve())
