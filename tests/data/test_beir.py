"""Judged queries from a folder in the BEIR layout and a run."""

import gzip
import json

import pytest

from conformal_retrievers.data.beir import read_beir, read_texts
from conformal_retrievers.data.hits import RETRIEVER, Hit
from conformal_retrievers.data.queries import JudgedQuery, Snippet

CORPUS = [
    {"_id": "d1", "title": "Liver", "text": "Alcohol strains it."},
    {"_id": "d2", "title": "", "text": "Everest is high."},
    {"_id": "d3", "text": "Bäckereien öffnen früh."},
    {"_id": "d4", "title": None, "text": "Four."},
]
QUERIES = [
    {"_id": "q1", "text": "Is alcohol bad?"},
    {"_id": "q2", "text": "Wie früh?", "group": "deutsch"},
    {"_id": "q3", "text": "Nothing is retrieved for this one."},
]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq1\td4\t1\nq2\td3\t1\nq3\td2\t1\n"
RUN = "q1\td2\t2\t0.5\nq1\td1\t1\t0.75\nq1\td4\t3\t0.25\nq2\td2\t1\t1e-3\n"
CONTENTS = {
    "corpus.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in CORPUS),
    "queries.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in QUERIES),
    "qrels.tsv": QRELS,
    "run.tsv": RUN,
}


@pytest.fixture
def beir(tmp_path):
    for name, content in CONTENTS.items():
        (tmp_path / name).write_text(content)
    return tmp_path


TEXTS = {"d1": "Liver Alcohol strains it.", "d2": "Everest is high.", "d4": "Four."}


def snippet(id, *hits, score=None):
    return Snippet(TEXTS[id], id=id, document=id, retrieval_score=score, hits=hits)


def test_a_folder_is_read_by_hand(beir):
    first, second, third = read_beir(beir, "run.tsv")
    found = [  # by rank, not in the order of the file
        snippet(id, Hit(RETRIEVER, rank, 0.75 - rank / 4), score=0.75 - rank / 4)
        for rank, id in enumerate(TEXTS)
    ]
    assert first == JudgedQuery("Is alcohol bad?", found, [True, False, True], id="q1", missed=0)
    assert (second.query, second.group) == ("Wie früh?", "deutsch")
    assert (second.relevant, second.missed) == ((False,), 1)
    assert (third.snippets, third.missed) == ((), 1)


def test_several_runs_are_united_by_reciprocal_rank_fusion(beir):
    (beir / "dense.tsv").write_text("q1\td4\t1\t0.9\nq1\td2\t2\t0.8\nq3\td2\t1\t\n")
    first, second, third = read_beir(beir, {"bm25": "run.tsv", "dense": "dense.tsv"})
    found = [  # 1/61 + 1/63, 1/62 + 1/62 and 1/61
        snippet("d4", Hit("bm25", 2, 0.25), Hit("dense", 0, 0.9)),
        snippet("d2", Hit("bm25", 1, 0.5), Hit("dense", 1, 0.8)),
        snippet("d1", Hit("bm25", 0, 0.75)),
    ]
    assert first == JudgedQuery("Is alcohol bad?", found, [True, False, True], id="q1", missed=0)
    assert (second.missed, third.missed) == (1, 0)  # what either run has is not missed
    assert third.snippets == (snippet("d2", Hit("dense", 0)),)
    by_path = read_beir(beir, [beir / "run.tsv", "dense.tsv"])
    assert by_path[0].snippets[0].hits == (Hit("run", 2, 0.25), Hit("dense", 0, 0.9))


def test_each_run_is_cut_to_k_before_they_are_united(beir):
    (beir / "dense.tsv").write_text("q1\td4\t1\t0.9\nq1\td2\t2\t0.8\n")
    first = read_beir(beir, ["run.tsv", "dense.tsv"], k=1)[0]
    assert [(s.id, len(s.hits)) for s in first.snippets] == [("d1", 1), ("d4", 1)]
    assert (first.missed, first.k) == (0, 2)


def test_a_single_run_has_the_name_of_a_single_retriever_and_several_have_different_ones(beir):
    assert read_beir(beir, ["run.tsv"]) == read_beir(beir, "run.tsv")
    assert read_beir(beir, {"bm25": "run.tsv"})[1].snippets[0].hits == (Hit("bm25", 0, 1e-3),)
    (beir / "run.tsv.gz").write_bytes(gzip.compress(RUN.encode()))
    for runs in ([], ["run.tsv", "run.tsv.gz"]):
        with pytest.raises(ValueError, match="run is"):
            read_beir(beir, runs)


def test_the_k_best_of_a_run_are_kept_and_the_others_are_missed(beir):
    first = read_beir(beir, "run.tsv", k=1)[0]
    assert [s.id for s in first.snippets] == ["d1"]
    assert first.missed == 1
    assert len(read_beir(beir, "run.tsv", k=3)[0].snippets) == 3
    with pytest.raises(ValueError, match="k is 0"):
        read_beir(beir, "run.tsv", k=0)


def test_a_snippet_is_relevant_from_the_smallest_score_that_counts(beir):
    strict = read_beir(beir, "run.tsv", min_score=2)
    assert strict[0].relevant == (True, False, False)
    assert [query.missed for query in strict] == [0, 0, 0]
    assert read_beir(beir, "run.tsv", min_score=0)[0].relevant == (True, True, True)


def test_runs_and_qrels_may_have_trecs_columns_or_no_header_or_one(beir):
    expected = read_beir(beir, "run.tsv")
    qrels = [row.split("\t") for row in QRELS.splitlines()[1:]]
    (beir / "qrels.tsv").write_text("".join(f"{q} 0 {d} {score}\n" for q, d, score in qrels))
    assert read_beir(beir, "run.tsv") == expected
    for blank in ("\t", " ", "   "):
        rows = [row.split("\t") for row in RUN.splitlines()]
        trec = [blank.join([q, "Q0", d, rank, score, "tag"]) for q, d, rank, score in rows]
        (beir / "run.trec").write_text("\n".join(trec) + "\n")
        assert read_beir(beir, "run.trec") == expected
    (beir / "run.tsv").write_text("query-id\tcorpus-id\trank\tscore\n" + RUN)
    (beir / "qrels.tsv").write_text(QRELS.split("\n", 1)[1])
    assert read_beir(beir, "run.tsv") == expected


def test_files_may_be_compressed_and_lie_elsewhere(beir, tmp_path_factory):
    expected = read_beir(beir, "run.tsv")
    (beir / "qrels").mkdir()
    (beir / "qrels.tsv").rename(beir / "qrels" / "test.tsv")
    elsewhere = tmp_path_factory.mktemp("runs") / "bm25.tsv.gz"
    elsewhere.write_bytes(gzip.compress(RUN.encode()))
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (beir / f"{name}.gz").write_bytes(gzip.compress((beir / name).read_bytes()))
        (beir / name).unlink()
    assert read_beir(str(beir), str(elsewhere)) == expected


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("run.tsv", RUN + "q2\td99\t2\t0.1\n", r"run\.tsv.*'q2'.*'d99'.*corpus"),
        ("run.tsv", RUN + "q99\td1\t1\t0.1\n", r"run\.tsv.*'q99'"),
        ("qrels.tsv", QRELS + "q99\td1\t1\n", "qrels.*'q99'"),
        ("run.tsv", RUN + "q1\td1\t5\t0.1\n", r"run\.tsv: query 'q1' retrieves 'd1' twice"),
        ("run.tsv", "q1\td1\t1\n", r"run\.tsv, line 1 has 3 columns; give 4 or 6, without"),
        ("run.tsv", RUN + "q2\td1\tfirst\t0.1\n", r"run\.tsv, line 5: rank is 'first'"),
        ("corpus.jsonl", '{"_id": "d1", "text": "a"}\n{"_id"', r"corpus\.jsonl, line 2: .*JSON"),
        ("corpus.jsonl", '{"_id": "d1", "text": "a"}\n' * 2, "line 2: _id 'd1' occurs twice"),
        ("corpus.jsonl", '{"id": "d1", "text": "a"}\n', "line 1: _id is missing"),
        ("queries.jsonl", '{"_id": "q1"}\n', r"queries\.jsonl, line 1: text is missing"),
    ],
)
def test_a_broken_line_an_unknown_id_or_a_missing_file_is_named(beir, name, text, problem):
    (beir / name).write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_beir(beir, "run.tsv")
    (beir / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        read_beir(beir, "run.tsv")


def test_a_query_keeps_the_blanks_around_it_wherever_it_is_read(beir):
    (beir / "queries.jsonl").write_text(CONTENTS["queries.jsonl"].replace("Is a", " Is a"))
    [judged, *_] = read_beir(beir, "run.tsv")
    assert judged.query == read_texts(beir)[judged.id] == " Is alcohol bad?"
