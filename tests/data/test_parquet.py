"""Judged and scored queries in Parquet files."""

import math
from dataclasses import fields

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st
from judged import QUERIES

from conformal_retrievers import JudgedQuery, ScoredQueries, ScoredQuery, Snippet, read
from conformal_retrievers.data.hits import Hit, HitColumns
from conformal_retrievers.data.parquet import files, iter_parquet, read_parquet, write_parquet
from conformal_retrievers.data.parquet.files import iter_rows


def assert_equal(one: ScoredQueries, other: ScoredQueries) -> None:
    for field in fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        assert type(ours) is type(theirs)
        np.testing.assert_equal(ours, theirs)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "judged.parquet"


def test_judged_queries_are_read_as_they_were_written(path):
    write_parquet(iter(QUERIES), path)
    assert list(iter_parquet(path)) == list(iter_parquet([str(path)])) == read(path) == QUERIES
    write_parquet([], path)
    assert list(iter_parquet(path)) == []


@pytest.fixture(autouse=True, scope="module")
def small_row_groups():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "SCORED", 2)
        patch.setattr(files, "JUDGED", 2)
        yield


FLOATS, PLACES = st.floats(allow_nan=False), st.integers(0, 9) | st.none()
TEXTS = st.text(max_size=3)
NAMES = st.sampled_from(["dense", "bm25"])
HITS = st.lists(st.builds(Hit, NAMES, st.integers(0, 9), FLOATS | st.none()), max_size=2).map(
    lambda hits: tuple({hit.retriever: hit for hit in hits}.values())
)
OF_BOTH = {"id": TEXTS | st.none(), "group": NAMES | st.none()}
OF_BOTH["missed"] = st.none() | st.integers(0, 2)
SNIPPETS = st.lists(
    st.builds(Snippet, TEXTS, *[TEXTS | st.none()] * 2, PLACES, FLOATS | st.none(), HITS),
    max_size=3,
    unique_by=lambda snippet: snippet.id,
)


@st.composite
def judged(draw):
    snippets = draw(SNIPPETS)
    fields = {"k": st.none() | st.integers(3, 9), "split": NAMES | st.none()}
    fields["evidence"] = st.lists(st.sampled_from([("d", 1, 2), ("d", "a")]), max_size=2)
    marks = [draw(st.booleans()) for _ in snippets]
    drawn = draw(st.fixed_dictionaries(OF_BOTH | fields))
    return JudgedQuery(draw(TEXTS), snippets, marks, **drawn)


@given(st.lists(judged(), max_size=4))
def test_any_judged_queries_are_read_as_they_were_written(tmp_path_factory, queries):
    path = tmp_path_factory.mktemp("parquet") / "judged.parquet"
    write_parquet(queries, path)
    assert list(iter_parquet(path)) == queries


@st.composite
def scored(draw, split=None, tokens=False):
    n = draw(st.integers(0, 3))
    names = draw(st.sets(NAMES)) if n else ()

    def numbers(values):
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), float)

    return ScoredQuery(
        numbers(st.floats()),
        numbers(st.booleans()).astype(bool),
        **draw(st.fixed_dictionaries(OF_BOTH)),
        tokens=numbers(st.integers(0, 5)) if tokens else None,
        hits={name: HitColumns(numbers(st.integers(0, 5)), numbers(st.floats())) for name in names},
        split=split,
        document_of=None if split is None else numbers(st.integers(0, 2)).astype(np.intp),
        unscorable=draw(st.dictionaries(st.integers(0, n - 1), TEXTS)) if n else {},
        silenced=draw(st.none() | st.booleans()),
    )


@given(
    st.tuples(st.sampled_from([None, "sentences"]), st.booleans()).flatmap(
        lambda drawn: st.lists(scored(*drawn), max_size=4)
    )
)
def test_any_scored_queries_are_read_as_they_were_written(tmp_path_factory, queries):
    path = tmp_path_factory.mktemp("parquet") / "scored.parquet"
    written = ScoredQueries.of(queries)
    write_parquet(queries or written, path)
    assert_equal(read_parquet(path), written)


LISTS = {
    "id": ["a", "b", "c"],
    "missed": [1, None, 0],
    "relevant": [[True, False], [], [True]],
    "scores": [[0.5, None], [], [0.25]],
}
EXPECTED = ScoredQueries(
    [0.5, math.nan, 0.25], [1, 0, 1], [0, 2, 2, 3], ids=["a", "b", "c"], missed=[1, math.nan, 0]
)


@pytest.mark.parametrize(
    "types",
    [
        {},
        {"id": pa.large_string(), "relevant": pa.large_list(pa.bool_()), "missed": pa.float64()},
        {"id": pa.string_view(), "scores": pa.list_(pa.float32()), "missed": pa.int8()},
        {"id": pa.dictionary(pa.int8(), pa.string()), "scores": pa.large_list(pa.float64())},
    ],
    ids=["pyarrow", "Polars", "DuckDB", "pandas"],
)
def test_the_types_that_other_tools_write_are_read(path, types):
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in LISTS.items()})
    try:
        pq.write_table(table, path)
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow does not write string views")
    assert_equal(read_parquet(path), EXPECTED)


def test_several_files_and_the_files_of_a_folder_or_url_are_read_one_after_another(tmp_path):
    for i, query in enumerate(QUERIES):
        (tmp_path / "inner.parquet").mkdir(exist_ok=True)  # as Spark names a folder
        write_parquet([query], tmp_path / f"inner.parquet/{i}.parquet")
    (tmp_path / "inner.parquet/manifest.json").write_text("{}")
    files = sorted((tmp_path / "inner.parquet").glob("*.parquet"))
    assert list(iter_parquet(tmp_path)) == list(iter_parquet(files)) == QUERIES
    assert list(iter_parquet(f"file://{tmp_path}")) == QUERIES
    with pytest.raises(FileNotFoundError, match="none"):
        read_parquet(tmp_path / "none.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has no file that ends in \.parquet"):
        read_parquet(tmp_path / "empty")


@pytest.mark.parametrize("read", [read_parquet, lambda path: list(iter_parquet(path))])
def test_a_column_that_a_file_has_twice_is_named(read, tmp_path):
    columns = [["q"], ["q"], [[True]], [[0.5]], [[0.6]], [["a"]]]
    names = ["id", "query", "relevant", "scores", "scores", "text"]
    pq.write_table(pa.table([pa.array(one) for one in columns], names), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet: the column scores is there twice"):
        read(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"scores": [["a", "b"], [], ["c"]]}, "scores has the type string"),
        ({"scores": [0.1, 0.2, 0.3]}, "scores has the type double; give a list"),
        ({"scores": [[0.1], [], [0.3]]}, "scores of row 0 has 1 entries, but relevant has 2"),
        ({"relevant": [[True, None], [], [True]]}, "relevant has a null"),
        ({"missed": [0.5, 1, 2]}, "missed is not of the type int64"),
        ({"mised": [1, 2, 3]}, "the column mised is unknown"),
        ({"scores": None}, "the column scores is missing"),
        ({"split": ["a", "b", "a"]}, "split is 'a' and 'b'"),
        ({"document_of": [[0, None], [], [0]]}, r"document_of\[1\] is nan"),
        ({"hits": [[None, ["dense"]], [], [None]]}, "hits has entries of the type string"),
        ({"hits": [[[{"retriever": "d", "rank": -1}], None], [], [None]]}, r"hits\.rank is -1"),
        ({"hits": [[2 * [{"retriever": "d", "rank": 1}], None], [], [None]]}, "'d' twice"),
    ],
)
def test_a_wrong_column_is_an_error_that_names_file_and_column(path, changed, field):
    columns = {name: values for name, values in (LISTS | changed).items() if values is not None}
    pq.write_table(pa.table(columns), path)
    with pytest.raises(ValueError, match=field) as error:
        read_parquet(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"text": [[None]]}, "text 0 is missing"),
        ({"relevant": [True], "rank": [1]}, r"no list; give read\(pandas\.read_parquet\(path\)\)"),
        ({"text": None}, "text 0 is missing"),
        ({"relevant": [[-1]]}, r"relevant\[0\] is .*-1"),
    ],
)
def test_a_judged_query_needs_its_texts_and_judgements_and_no_grades(path, changed, field):
    columns = {"query": ["q"], "relevant": [[True]], "text": [["x"]]} | changed
    pq.write_table(pa.table({name: one for name, one in columns.items() if one}), path)
    with pytest.raises(ValueError, match=rf"judged\.parquet.*{field}"):
        list(iter_parquet(path))


def test_a_file_must_be_parquet_and_undamaged(path):
    write_parquet(QUERIES, path)
    whole = path.read_bytes()
    texts = whole.index(b"Caf")
    for damaged in (b"PAR1 cut", whole[:-9], whole[:texts] + b"B" + whole[texts + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"judged\.parquet is not a complete Parquet file"):
            list(iter_parquet(path))


class Away(AbstractFileSystem):
    """Files on a machine that goes away once they are open."""

    protocol = "away"

    def info(self, path, **_):
        return {"name": path, "size": 400, "type": "file"}

    def _open(self, path, *_, **__):
        return AwayFile(self, path, size=400)


class AwayFile(AbstractBufferedFile):
    def _fetch_range(self, start, end):
        raise TimeoutError(110, "timed out")


def test_a_file_that_cannot_be_read_to_its_end_is_not_called_damaged():
    fsspec.register_implementation("away", Away, clobber=True)
    with pytest.raises(TimeoutError, match=r"away://judged\.parquet"):
        list(iter_parquet("away://judged.parquet"))


def test_a_malformed_row_is_an_error_among_the_others_and_a_wrong_column_is_raised(path):
    good = {"query": ["a", None, "c", "d"], "text": [["x"], ["x"], ["x"], ["x", "y"]]}
    pq.write_table(pa.table({**good, "relevant": 4 * [[True]]}), path)
    found = [one if isinstance(one, ValueError) else one.query for one in iter_rows(path)]
    assert [*map(type, found)] == [str, ValueError, str, ValueError]
    assert "query" in str(found[1])
    assert "text" in str(found[3])
    pq.write_table(pa.table({**good, "relevant": 4 * [["yes"]]}), path)
    with pytest.raises(ValueError, match=r"judged\.parquet.*relevant"):
        next(iter_rows(path))


def test_queries_that_cannot_be_written_leave_the_old_file_as_it_was(path, tmp_path):
    path.write_bytes(b"old")
    with pytest.raises(TypeError, match=r"queries\[1\]"):
        write_parquet([QUERIES[0], "text"], path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_null_in_place_of_a_list_is_null_for_each_snippet(path):
    pq.write_table(pa.table(LISTS | {"scores": [None, None, [0.25]]}), path)
    assert np.array_equal(read_parquet(path).scores, [math.nan, math.nan, 0.25], equal_nan=True)
