"""The site of the documentation: what its pages name, and how they look in a browser."""

import importlib
import json
import os
import re
import subprocess
import sys
from inspect import ismodule
from pathlib import Path

import numpy as np
import pytest
from chromium import needs_chromium

from conformal_retrievers import Calibration, ScoredQuery, evaluate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PUBLIC = """
    conformal_retrievers answers calibration claims data evaluation labels labels.judging llm
    lookback monitoring scoring langchain_conformal llama_index.postprocessor.conformal
"""
IMPORT = re.compile(
    r"^from ((?:conformal_retrievers|langchain_conformal|llama_index\.postprocessor)[\w.]*)"
    r" import (\([^)]*\)|.*)",
    re.M,
)
CONSTANTS = {"conformal_retrievers.llm.wire", "conformal_retrievers.__version__"}


def test_every_public_name_and_every_name_that_pages_import_is_in_the_reference():
    pytest.importorskip("ray")  # what runs on a cluster imports it
    documented = set()
    for page in ROOT.glob("docs/reference/*.md"):
        for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.M):
            module, _, attribute = name.rpartition(".")
            found = getattr(importlib.import_module(module), attribute)
            documented |= {id(found), *map(id, vars(found).values() if ismodule(found) else ())}
    named = set()
    for module in PUBLIC.split():
        top = module.split("_")[0] in ("conformal", "langchain", "llama")
        path = module if top else f"conformal_retrievers.{module}"
        named |= {(path, name) for name in importlib.import_module(path).__all__}
    for page in [*ROOT.glob("docs/*.md"), *ROOT.glob("*/*/README.md"), ROOT / "README.md"]:
        for module, names in IMPORT.findall(page.read_text(encoding="utf-8")):
            if ".cli" not in module:
                cleaned = re.sub(r" as \w+|#.*", "", names)
                named |= {(module, name) for name in re.findall(r"\w+", cleaned)}
    missing = {
        f"{module}.{name}"
        for module, name in named
        if id(getattr(importlib.import_module(module), name)) not in documented
    }
    assert missing <= CONSTANTS


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder


def test_the_markdown_of_the_site_has_the_interface_and_its_links_lead_somewhere(site):
    for page in [*site.rglob("*.md"), site / "llms.txt", site / "llms-full.txt"]:
        text = page.read_text(encoding="utf-8")
        assert not re.search("^::: ", text, re.M), page
        prose = re.sub(r"^(```+).*?^\1$", "", text, flags=re.M | re.S)
        links = re.findall(r'(?:\]\(|src="|href="|srcset=")([^)"#\s]+)', prose)
        inside = [link for link in links if "://" not in link]
        assert [link for link in inside if not (page.parent / link).exists()] == [], page
    assert "delta: float | None = None" in (site / "llms-full.txt").read_text(encoding="utf-8")


def item_of(snippet, threshold):
    """Return the class of a snippet in the slider's list, and the texts in it."""
    dropped = "lost" if snippet["relevant"] else "dropped"
    outcome = "kept" if snippet["score"] <= threshold else dropped
    mark = ", relevant" if snippet["relevant"] else ""
    score = f"score {written(snippet['score'])}"
    return [outcome, outcome + mark, snippet["document"], score, snippet["text"]]


def written(score):
    return f"{score:g}".replace("-", "−")


@needs_chromium
def test_the_slider_shows_what_the_library_computes(site, browser):
    data = json.loads((ROOT / "docs/assets/slider.json").read_text(encoding="utf-8"))
    calibrated = [ScoredQuery(s, [True] * len(s)) for s in data["calibration"]]
    held_out = [
        ScoredQuery(q["scores"], [i in q["relevant"] for i in range(len(q["scores"]))])
        for q in data["held_out"]
    ]
    browser.size(400, 800)
    browser.open((site / "index.html").as_uri())
    browser.js("document.getElementById('alpha').focus()")
    for alpha in [n / 100 for n in range(11, 51)]:
        for kind in ("keyDown", "keyUp"):
            key = {"key": "ArrowRight", "windowsVirtualKeyCode": 39}
            browser.send("Input.dispatchKeyEvent", type=kind, **key)
        calibration = Calibration.from_scores(calibrated, alpha=alpha, scorer="learned")
        result = evaluate(calibration, held_out)
        guaranteed = f"≥ {round(100 * (1 - alpha), 1):g} %"
        figures = [guaranteed, str(result.coverage["query-recall"]), str(result.removal)]
        shown = "[...document.querySelectorAll('#slider dd')].map(e => e.textContent)"
        assert browser.js(shown) == figures, alpha
        n_kept = sum(score <= calibration.threshold() for score in data["questions"][0]["scores"])
        summary = browser.js("document.querySelector('#slider > p').textContent")
        assert summary.startswith(f"Keeps {n_kept} of {data['questions'][0]['n']} "), alpha
        assert f"at most {written(calibration.threshold())}. " in summary
        now = "document.querySelector('#slider .now').getAttribute('x1')"
        assert float(browser.js(now)) == pytest.approx(400 * (alpha - 0.01) / 0.49), alpha
        items = "[...document.querySelectorAll('#slider li')].map("
        items += "e => [e.className, ...[...e.children].map(c => c.textContent)])"
        assert browser.js(items) == [
            item_of(snippet, calibration.threshold())
            for snippet in data["questions"][0]["snippets"]
        ]
    assert any(item[1] == "lost, relevant" for item in browser.js(items))
    assert browser.js("document.getElementById('alpha').max") == "49"
    lines = "[...document.querySelectorAll('#slider polyline')].map(e => e.getAttribute('points'))"
    for name, line in zip(("kept", "removed"), browser.js(lines), strict=True):
        points = np.array([point.split(",") for point in line.split()], dtype=float)
        shares = [row[name] for row in data["alphas"]]
        expected = [np.linspace(0, 400, 50), 100 - 100 * np.array(shares)]
        assert points == pytest.approx(np.transpose(expected))
    browser.js("document.getElementById('question').selectedIndex = 1")
    browser.js("document.getElementById('question').dispatchEvent(new Event('input'))")
    first = browser.js("document.querySelector('#slider li p').textContent")
    assert first == data["questions"][1]["snippets"][0]["text"]
    assert not browser.problems


@needs_chromium
def test_no_page_is_wider_than_a_telephone_or_asks_another_host(site, browser):
    browser.size(400, 800)
    wide = []
    for page in sorted({*site.rglob("*.html")} - {site / "404.html"}):  # only a server shows it
        browser.open(page.as_uri())
        width = browser.js("document.scrollingElement.scrollWidth")
        broken = browser.js("[...document.images].filter(i => !i.alt || !i.naturalWidth).length")
        if width > 400 or broken:
            wide.append((page.name, width, broken))
    assert not wide
    assert not browser.problems
    assert all(url.startswith(("file:", "about:", "data:")) for url in browser.requested)
