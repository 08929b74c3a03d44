"""The file of a calibration: what it holds, and what is refused.

How files are written, and broken envelopes, are tested in tests/data/test_files.py.
"""

import hashlib
import json
import math
from pathlib import Path

import pytest
from answerable import drawn
from calibrations import calibration_of, every_guarantee, relevant

from conformal_retrievers import Calibration, ConformalFilter, calibrate, calibrate_gate
from conformal_retrievers.scoring import RankScorer

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def saved(tmp_path):
    """A file with a threshold of 0.4, and everything that a file may hold."""
    path = tmp_path / "calibration.json"
    calibration_of(retrieval={"retriever": "Café", "k": 20}, labels={"source": None}).save(path)
    return path


def content_of(path):
    return json.loads(path.read_text(encoding="utf-8"))


def sign(content):
    """Give the fields a checksum that fits."""
    fields = {name: value for name, value in content.items() if name != "sha256"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return fields | {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def forge(path, of_query=(), **changes):
    """Change fields of a file, or of its first query, and let its checksum fit."""
    content = content_of(path)
    content["queries"][0] |= dict(of_query)
    path.write_text(json.dumps(sign(content | changes)), encoding="utf-8")


# --- what is saved is what is loaded --------------------------------------------------------------

AWKWARD = [0.1 + 0.2, 1 / 3, 5e-324, -0.0, 1e300, math.pi, -2.5e-10]
AT = [*AWKWARD, 0.3, 0.4, 7.0, math.inf, -math.inf, math.nan]


def some_queries(rng, n=60):
    """Queries of three groups, one of them small, of which some miss some or all snippets."""
    awkward = relevant(*AWKWARD, id="ü", group="g", missed=3)
    queries = [awkward, relevant(math.inf, group="h", missed=0)]
    for i in range(n):
        size = int(rng.integers(0, 6))
        queries.append(
            relevant(
                *rng.normal(size=size),
                id=f"q{i}",
                group="tiny" if i < 3 else "gh"[i % 2],
                missed=int(rng.random() < 0.05) + (size == 0),
            )
        )
    return queries


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("count_missed", [False, True])
@pytest.mark.parametrize("delta", [None, 0.1])
@every_guarantee
def test_each_combination_survives_a_file(guarantee, delta, count_missed, by_group, tmp_path, rng):
    calibration = calibration_of(
        some_queries(rng),
        0.3,
        guarantee,
        scorer="modèle « é »",
        count_missed=count_missed,
        by_group=by_group,
        delta=None if guarantee == "snippet" else delta,
        retrieval={"k": 20, "nested": [1, {"a": None}]},
        labels={"source": "hand", "share": 0.1 + 0.2},
    )
    calibration.save(tmp_path / "c.json")
    loaded = Calibration.load(tmp_path / "c.json")
    assert (loaded, hash(loaded)) == (calibration, hash(calibration))
    assert loaded.statement == calibration.statement
    for group in ("g", "h", "tiny", "unseen", None):
        assert loaded.threshold(group).hex() == calibration.threshold(group).hex()
        ours, theirs = (c.p_values(AT, group).tobytes() for c in (calibration, loaded))
        assert ours == theirs
    for ours, theirs in zip(calibration.queries, loaded.queries, strict=True):
        assert ours.scores.tobytes() == theirs.scores.tobytes()
        assert (ours.id, ours.group, ours.missed) == (theirs.id, theirs.group, theirs.missed)
    assert Calibration.from_json((tmp_path / "c.json").read_text(encoding="utf-8")) == loaded


def test_infinite_thresholds_are_named_by_what_they_keep(tmp_path):
    for alpha, name in ((0.01, "keep_all"), (0.9, "keep_none")):
        path = tmp_path / f"{name}.json"
        calibration_of([relevant(-math.inf), relevant(1.0), relevant(2.0)], alpha, "all").save(path)
        assert content_of(path)["threshold"] == name
        assert math.isinf(Calibration.load(path).threshold())


def test_a_text_is_read_whatever_its_white_space_but_not_cut_off(saved):
    text = saved.read_text(encoding="utf-8")
    assert Calibration.from_json(json.dumps(content_of(saved))) == Calibration.load(saved)
    with pytest.raises(ValueError, match="calibration"):
        Calibration.from_json(text[:-20])


# --- golden files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "subject", "threshold", "of_gate"),
    [
        ("snippets", "snippets", 0.4, None),
        ("sentences", "sentences", 3.0, None),
        ("claims", "claims", 0.6, None),
        ("flags", "flags", 0.5, None),
        ("queries", "queries", 0.75, None),
        ("behind-a-gate", "snippets", 0.5, 0.75),
    ],
)
def test_a_golden_file_is_saved_with_the_same_bytes(name, subject, threshold, of_gate, tmp_path):
    golden = GOLDEN / f"{name}.json"
    calibration = Calibration.load(golden)
    assert calibration.subject.name == subject
    assert calibration.threshold() == threshold
    assert of_gate is None or calibration.gate.threshold() == of_gate
    calibration.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == golden.read_bytes()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 0.9}, "'threshold'"),
        ({"alpha": 0.5}, "'threshold'"),
        ({"guarantee": "snippet", "relative_to_query": True}, "guarantee is 'snippet'"),
        ({"count_missed": True}, "'threshold'"),
        ({"by_group": True}, "'a': group is None"),
        ({"effective_n": 500.0}, "'effective_n'"),
        ({"other_ids": ["a"]}, "id 'a' occurs 2 times"),
        ({"lowest_scores": [0.2, 0.1]}, "'lowest_scores'"),
        ({"n_without_relevant": 10**18}, "n_without_relevant is"),
        ({"other_ids": [""], "n_without_relevant": 1}, r"other_ids\.0 is"),
        ({"retrieval": {"k": -3}}, "retrieval: k is -3"),
        ({"retrieval": {"retriever": "\x1b[2J"}}, "retrieval: retriever is"),
        ({"scorer": "\x1b[2J"}, "scorer is"),
        ({"queries": []}, "there are no judged queries"),
        ({"subject": "claims"}, "guarantee is"),
        ({"subject": "flags", "guarantee": "all"}, "one score for each answer"),
        ({"details": {"share": 0.5}}, "share"),
        ({"extra": 1}, "extra is"),
        ({"of_query": {"scores": []}}, "'threshold'"),
        ({"of_query": {"scores": [0.3, 0.1]}}, "'queries'"),
        ({"of_query": {"missed": -1}}, "missed"),
        ({"of_query": {"missed": 10**400}}, r"queries\.0\.missed"),
        ({"of_query": {"id": "b"}}, "query id 'b' occurs 2 times"),
        ({"of_query": {"more": 1}}, r"queries\.0\.more"),
    ],
)
def test_inconsistent_fields_are_refused_although_the_checksum_fits(saved, changes, message):
    forge(saved, **changes)
    with pytest.raises(ValueError, match=message) as error:
        Calibration.load(saved)
    assert str(saved) in str(error.value)


def leaves(value, path=()):
    """Yield the path to each leaf of JSON, of lists to those of the first item."""
    for key, item in value.items() if isinstance(value, dict) else [*enumerate(value)][:1]:
        if isinstance(item, dict | list) and item:
            yield from leaves(item, (*path, key))
        else:
            yield (*path, key)


def changed(value, path, leaf):
    """Return JSON with another leaf."""
    copy = value.copy()
    key, *others = path
    copy[key] = changed(value[key], others, leaf) if others else leaf
    return copy


def written():
    """Yield the files of all kinds, one with a learned score, one with a gate in front."""
    yield from map(content_of, sorted(GOLDEN.glob("*.json")))
    answerable = drawn(90, best=3, n_relevant=1)
    gate = calibrate_gate(answerable, drawn(40, best=0, of="u"), alpha=0.1)
    yield json.loads(calibrate(answerable, alpha=0.3, gate=gate).to_json())
    yield json.loads(calibrate(answerable, RankScorer(), alpha=0.3).to_json())


def opened(text):
    return ConformalFilter.of(Calibration.from_json(text))


def test_a_value_of_another_type_is_an_error_that_names_its_field_wherever_it_stands():
    n = 0
    for content in written():
        free = {"retrieval", "labels", "sha256"}  # any JSON, and what fits the fields
        for path in leaves(content):
            if free & {*path} or path[-1] == "scorer_provenance":
                continue
            text = json.dumps(sign(changed(content, path, [{"another": None}])))
            opens = opened if "scorer_provenance" in path else Calibration.from_json
            with pytest.raises(ValueError, match="|".join(map(str, path))):
                opens(text)
            n += 1
    assert n > 100


def test_a_missing_field_is_named(saved):
    content = content_of(saved)
    for name in content.keys() - {"sha256", "format"}:
        saved.write_text(json.dumps(sign({k: v for k, v in content.items() if k != name})))
        with pytest.raises(ValueError, match=name):
            Calibration.load(saved)
