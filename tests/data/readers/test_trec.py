"""TREC's qrels and runs."""

import gzip

import pytest

from conformal_retrievers.data import Hit, JudgedQuery, Snippet, read, read_trec

QRELS = "301 0 FT-1 2\n301 0 FT-2 0\n301 0 FT-4 1\n302 0 FT-3 1\n303 0 FT-9 -1\n"
RUN = (
    "301 Q0 FT-2 2 11.5 bm25\n301 Q0 FT-1 1 12.5 bm25\n301 Q0 FT-7 3 1e1 bm25\n"
    "302 Q0 FT-3 1 9 bm25\n303 Q0 FT-9 1 3 bm25\n"
)


@pytest.fixture
def files(tmp_path):
    contents = {
        "qrels.txt": QRELS,
        "run.txt": RUN,
        "queries.tsv": "301\tWho?\n302\tWas früh?\n303\tWhy?\n",
        "corpus.tsv": "FT-1\tAnn\tdid.\nFT-2\tIt rains.\nFT-3\tFrüh.\nFT-4\tBob.\n"
        "FT-7\tSeven.\nFT-9\tNine.\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def texts_in(folder):
    return {"queries": folder / "queries.tsv", "corpus": folder / "corpus.tsv"}


def snippet(id, *hits, text=""):
    return Snippet(text, id=id, retrieval_score=hits[0].score, hits=hits)


def test_qrels_and_a_run_are_read_by_hand(files):
    first, second, third = read(files / "qrels.txt", files / "run.txt")
    scores = enumerate({"FT-1": 12.5, "FT-2": 11.5, "FT-7": 10.0}.items())
    found = [snippet(name, Hit("retriever", rank, score)) for rank, (name, score) in scores]
    judged = JudgedQuery("301", found, [True, False, False], id="301", missed=1)
    assert first == judged  # its text is unknown, and FT-4 is missed
    assert (second.relevant, second.missed) == ((True,), 0)
    assert (third.relevant, third.missed) == ((False,), 0)


def test_texts_come_from_files_of_their_own(files):
    given = (files / "qrels.txt", files / "run.txt")
    first, *_ = read_trec(*given, **texts_in(files), min_score=2, k=2)
    assert (first.query, first.k, first.missed) == ("Who?", 2, 0)
    found = [(s.text, s.document) for s in first.snippets]
    assert found == [("Ann\tdid.", "FT-1"), ("It rains.", "FT-2")]
    (files / "queries.jsonl").write_text('{"_id": 301, "text": "Who?"}\n')
    with pytest.raises(ValueError, match=r"queries\.jsonl lacks query '302'"):
        read_trec(*given, queries=files / "queries.jsonl")


def test_equal_ranks_go_by_score_as_in_trec_eval(files):
    (files / "run.txt").write_text("301 Q0 FT-2 0 1.5 x\n301 Q0 FT-1 0 2.5 x\n")
    first, *_ = read(files / "qrels.txt", files / "run.txt")
    assert [s.id for s in first.snippets] == ["FT-1", "FT-2"]


def test_qrels_alone_are_relevant_snippets_for_judge_retriever(files):
    with pytest.warns(UserWarning, match="1 queries, such as '303'"):
        found = read_trec(files / "qrels.txt", queries=files / "queries.tsv")
    assert found == [
        JudgedQuery.from_ids("Who?", ["FT-1", "FT-4"], id="301"),
        JudgedQuery.from_ids("Was früh?", ["FT-3"], id="302"),
    ]
    with pytest.warns(UserWarning, match="left out"):
        first, _ = read_trec(files / "qrels.txt", **texts_in(files))
    assert first == JudgedQuery(
        "Who?", [Snippet("Ann\tdid.", "FT-1"), Snippet("Bob.", "FT-4")], [True, True], id="301"
    )
    with pytest.raises(ValueError, match="queries=FILE"):
        read(files / "qrels.txt")


def test_a_text_behind_a_tab_keeps_the_blanks_around_it(files):
    corpus = files / "corpus.tsv"
    corpus.write_text(corpus.read_text().replace("Ann\tdid.", " Ann\tdid. "))
    [judged, *_] = read_trec(files / "qrels.txt", files / "run.txt", corpus=corpus)
    assert judged.snippets[0].text == " Ann\tdid. "


def test_queries_of_a_run_without_judgements_are_left_out_with_a_warning(files):
    (files / "run.txt").write_text(RUN + "999 Q0 FT-1 1 3 bm25\n")
    with pytest.warns(UserWarning, match="1 queries of the run, such as '999'"):
        assert len(read(files / "qrels.txt", files / "run.txt")) == 3
    (files / "run.txt").write_text("999 Q0 FT-1 1 3 bm25\n")
    with (
        pytest.warns(UserWarning, match="999"),
        pytest.raises(ValueError, match="run has no query"),
    ):
        read(files / "qrels.txt", files / "run.txt")


def test_qrels_as_beir_has_them_and_packed_files_are_read_too(files):
    lines = [line.split() for line in QRELS.splitlines()]
    text = "query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t{s}\n" for q, _, d, s in lines)
    (files / "qrels.tsv.gz").write_bytes(gzip.compress(text.encode()))
    expected = read(files / "qrels.txt", files / "run.txt")
    assert read(files / "qrels.tsv.gz", files / "run.txt") == expected


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("run.txt", "301 Q0 FT-8 4 1 bm25\n", "run.txt: query '301' retrieves 'FT-8'"),
        ("qrels.txt", "301 1 FT-1 1\n", "line 6: 'FT-1' is judged for one query as 2 and as 1"),
        ("corpus.tsv", "FT-1\tagain\n", "line 7"),
        ("queries.tsv", "no tab\n", "line 4"),
    ],
)
def test_a_broken_line_is_refused_with_file_and_line(name, line, message, files):
    with (files / name).open("a") as file:
        file.write(line)
    with pytest.raises(ValueError, match=message):
        read_trec(files / "qrels.txt", files / "run.txt", **texts_in(files))


def test_a_run_alone_is_not_judged(files):
    with pytest.raises(ValueError, match=r"run\.txt.*no known format.*TREC qrels"):
        read(files / "run.txt")
    for k in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"k is {k}"):
            read(files / "qrels.txt", files / "run.txt", k=k)
