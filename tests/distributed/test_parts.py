"""Parts of a source, and the folder that tells which of them are done."""

import codecs
import gzip
from uuid import uuid4

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers.cluster.parts import (
    MANIFEST,
    Folder,
    files_in,
    judged_in,
    manifest_of,
    parts_of,
    surveyed,
)
from conformal_retrievers.data.files import envelope_text


def line_of(word):
    return f'{{"query": "{word}", "snippets": []}}' if word.strip() and word != "bad" else word


@given(
    st.lists(st.lists(st.sampled_from(["", " ", "a", "bad", "é"])), min_size=1),
    st.integers(1, 4),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_parts_have_every_line_of_a_source_once_with_its_number(files, per_part, end, ends):
    folder = f"memory://{uuid4()}"
    for i, words in enumerate(files):
        content = end.join(map(line_of, words)) + (end if ends else "")
        with fsspec.open(f"{folder}/{i:03}.jsonl", "wb") as file:
            file.write(content.encode())
    surveys = [surveyed(file, per_part) for file in files_in(folder)]
    parts = parts_of(surveys)
    assert [p.name for p in parts] == sorted({p.name for p in parts})
    found = [judged_in(part) for part in parts]
    every = [
        (survey.file, number, word)
        for survey, words in zip(surveys, files, strict=True)
        for number, word in enumerate(words, start=1)
        if word.strip()
    ]
    words = [word for *_, word in every if word != "bad"]
    assert [q.query for queries, _ in found for q in queries] == words
    assert [(e["file"], e["line"]) for _, errors in found for e in errors] == [
        (file, number) for file, number, word in every if word == "bad"
    ]
    assert all(len(queries) + len(errors) <= per_part for queries, errors in found)


def test_malformed_lines_are_named_by_file_and_number(tmp_path):
    path = tmp_path / "a.jsonl"
    one, last = (line_of(word).encode() for word in ("one", "last"))
    path.write_bytes(codecs.BOM_UTF8 + b"\n".join([one, b'{"query": 1}', b"", b"\xff", last]))
    (part,) = parts_of([surveyed(str(path), 100)])
    found, errors = judged_in(part)
    assert [query.query for query in found] == ["one", "last"]
    assert [(e["file"], e["line"]) for e in errors] == [(str(path), 2), (str(path), 4)]
    assert errors[0]["error"].startswith("snippets, relevant_ids and evidence are")
    assert "utf-8" in errors[1]["error"]


def test_a_compressed_file_is_one_part(tmp_path):
    words = ["one", "two", "three"]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(map(line_of, words)).encode()))
    (part,) = parts_of([surveyed(file, 1) for file in files_in(tmp_path)])
    assert [query.query for query in judged_in(part)[0]] == words


def test_a_source_has_only_data(tmp_path):
    with pytest.raises(FileNotFoundError, match="source"):
        files_in(tmp_path / "none")
    with pytest.raises(ValueError, match="source"):
        files_in(tmp_path)
    for name in ("_SUCCESS", ".hidden", "errors.jsonl", MANIFEST, "a.jsonl", "b.parquet"):
        (tmp_path / name).touch()
    assert files_in(tmp_path) == [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.parquet"]
    (tmp_path / "c.csv").touch()
    with pytest.raises(ValueError, match=r"c\.csv"):
        files_in(tmp_path)


# --- the folder -----------------------------------------------------------------------------------


@pytest.fixture(params=["disk", "memory"])
def folder(request, tmp_path):
    return Folder(tmp_path / "out" if request.param == "disk" else f"memory://{uuid4()}/out")


def fields(tmp_path, text="a\nb\n", scorer="s", per_part=1):
    (tmp_path / "a.jsonl").write_text(text)
    survey = surveyed(str(tmp_path / "a.jsonl"), per_part)
    return manifest_of({"relative": False, "scorer": scorer}, [survey], per_part)


def test_a_folder_is_continued_with_the_same_source_and_scorer_only(folder, tmp_path):
    folder.begin(fields(tmp_path))
    folder.begin(fields(tmp_path))
    assert folder.manifest["n_parts"] == 2
    with pytest.raises(ValueError, match="scorer 's', not scorer 't'"):
        folder.begin(fields(tmp_path, scorer="t"))
    with pytest.raises(ValueError, match="queries_per_part 1, not 2"):
        folder.begin(fields(tmp_path, per_part=2))
    with pytest.raises(ValueError, match=r"a\.jsonl.*sha256.*a\.jsonl.*sha256"):
        folder.begin(fields(tmp_path, text="a\nc\n"))


def test_a_manifest_of_another_version_or_that_was_changed_is_refused(folder, tmp_path):
    folder.begin(fields(tmp_path))
    newer = envelope_text({**folder.manifest, "version": 99}, rows="files")
    for text, field in ((newer, "version 99"), (newer.replace("99", "1"), "sha256")):
        folder.write(MANIFEST, text.encode())
        with pytest.raises(ValueError, match=field):
            folder.begin(fields(tmp_path))


def test_a_folder_of_other_files_is_refused(folder, tmp_path):
    folder.fs.makedirs(folder.root)
    folder.write("thesis.txt", b"precious")
    with pytest.raises(ValueError, match="out"):
        folder.begin(fields(tmp_path))


def test_a_part_is_done_once_its_report_is_written(folder, tmp_path):
    folder.begin(fields(tmp_path))

    def save(path):
        with open(path, "wb") as file:
            file.write(b"content")

    def killed(path):
        save(path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.finish("000000-000000", {"queries": 1}, killed)
    assert folder.done() == set()
    folder.finish("000000-000000", {"queries": 1}, save)
    assert folder.done() == {"000000-000000"}
    assert folder.fs.cat_file(f"{folder.root}/000000-000000.parquet") == b"content"
    with pytest.raises(ValueError, match="1 of 2 parts"):
        folder.results()
    folder.write("000000-000001.parquet", b"of an actor that died")
    folder.finish("000000-000001", {"queries": 0}, None)
    assert not folder.fs.exists(f"{folder.root}/000000-000001.parquet")
    assert folder.results()[1] == [{"queries": 1}, {"queries": 0}]
