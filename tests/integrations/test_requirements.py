"""Each package works where nothing is installed but what it requires."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow

toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parent.parent.parent
FOLDERS = {path.parent.name: path.parent for path in ROOT.glob("integrations/*/pyproject.toml")}
FOLDERS["conformal-retrievers"] = ROOT


def written_in(name: str) -> list[str]:
    """Return the requirements in one of our own pyproject.toml files, those of extras marked."""
    project = toml.loads((FOLDERS[name] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    of_extras = [f'{one}; extra == "{extra}"' for extra, those in extras.items() for one in those]
    return project["dependencies"] + of_extras


def required_by(name: str, extras: frozenset[str] = frozenset(), known=None) -> set[tuple]:
    """Return all (distribution, extras) that are installed with a distribution."""
    known = set() if known is None else known
    if (name, extras) not in known:
        known.add((name, extras))
        for text in written_in(name) if name in FOLDERS else requires(name) or []:
            one = Requirement(text)
            if one.marker and not any(one.marker.evaluate({"extra": e}) for e in ("", *extras)):
                continue
            required_by(canonicalize_name(one.name), frozenset(one.extras), known)
    return known


CODE = """
import sys

sys.path.append({tests!r})

class Others:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {others!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Others())
from conformal_retrievers import calibrate
from {module} import {component}
from answerable import drawn
queries = drawn(240, best=4, n_relevant=1)
calibration = calibrate(queries, alpha=0.1)
{component}.from_calibration(calibration)
"""


@pytest.mark.parametrize(
    ("module", "component"),
    [
        ("langchain_conformal", "ConformalCompressor"),
        ("llama_index.postprocessor.conformal", "ConformalPostprocessor"),
    ],
)
def test_the_default_calibration_works_with_what_a_package_requires(module, component):
    installed = {name for name, _ in required_by(canonicalize_name(module))}
    others = {
        top
        for top, names in packages_distributions().items()
        if not installed & {canonicalize_name(name) for name in names}
    } - {"langchain_conformal", "llama_index", "conformal_retrievers"}
    assert {"torch", "transformers", "rank_bm25", "regex"} & others
    code = CODE.format(others=others, module=module, component=component, tests=str(ROOT / "tests"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
