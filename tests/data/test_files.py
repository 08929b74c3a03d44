"""Files written whole, and the envelope: its layout, and every way to break it."""

import errno
import math
import os
import subprocess
import sys

import pytest

from conformal_retrievers.data import files

KIND = files.Kind("test/thing", 1, saved_by="Thing.save", what="thing")
FIELDS = {
    "format": "test/thing",
    "version": 1,
    "name": "Café",
    "third": 1 / 3,
    "rows": [{"a": 1}, {"a": [0.1, "inf"]}],
}


ROWS = '  "rows": [\n    {"a": 1},\n    {"a": [0.1, "inf"]}\n  ]\n}\n'


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "thing.json"
    files.write_envelope(path, FIELDS, KIND, rows="rows")
    return path


def test_an_envelope_has_one_field_and_one_row_per_line(saved):
    name, third, last = saved.read_text("utf-8").splitlines()[3:6]
    assert (name, third) == ('  "name": "Café",', '  "third": 0.3333333333333333,')
    assert last == f'  "sha256": "{files.checksum(FIELDS)}",'
    assert saved.read_text("utf-8").endswith(ROWS)
    assert files.read_envelope(saved, KIND) == FIELDS
    for empty in ({"rows": []}, {}):
        fields = {"format": "test/thing", "version": 1, **empty}
        text = files.envelope_text(fields, rows="rows" if empty else None)
        assert files.parse_envelope(text, "", KIND) == fields


def test_the_checksum_depends_on_every_field_but_not_on_their_order():
    own = files.checksum(FIELDS)
    assert files.checksum(dict(reversed(FIELDS.items()))) == own
    assert all(files.checksum({**FIELDS, name: "other"}) != own for name in FIELDS)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_is_not_written(tmp_path, number):
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_envelope(tmp_path / "t.json", {"score": number}, KIND)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("written", "instead", "problem"),
    [
        ('"Café"', '"Cafe"', "sha256"),
        ('"version": 1,', '"version": 2,', "version 2.*reads version 1; upgrade"),
        ('"sha256"', '"sha"', "'sha256' is None"),
        ('"version": 1,', "", "version None"),
        ("test/thing", "test/other", "not a thing file.*'test/thing'.*Thing.save"),
        ('"version": 1,', '"version": 1, "version": 1,', "twice"),
        ("0.3333333333333333", "NaN", "NaN"),
        ("0.3333333333333333", "-Infinity", "Infinity"),
        ("0.3333333333333333", "1e999", "1e999"),
        ("  ]\n}\n", "", "not a complete thing file"),
        ("{", "[" * 100_000, "not a complete thing file"),
    ],
)
def test_a_changed_envelope_is_refused(saved, written, instead, problem):
    text = saved.read_text("utf-8")
    assert written in text
    saved.write_text(text.replace(written, instead, 1), "utf-8")
    with pytest.raises(ValueError, match=problem) as error:
        files.read_envelope(saved, KIND)
    assert str(saved) in str(error.value)


@pytest.mark.parametrize("text", ["[]", "7", "null", "{}"])
def test_json_that_is_not_an_envelope_is_refused(text):
    with pytest.raises(ValueError, match="the text .*'format'"):
        files.parse_envelope(text, "the text", KIND)


def test_a_path_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json") as raised:
        files.read_envelope(tmp_path / "none.json", KIND)
    assert str(raised.value).startswith(str(tmp_path))
    assert raised.value.errno == errno.ENOENT
    (tmp_path / "latin.json").write_bytes("é".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.json"):
        files.read_envelope(tmp_path / "latin.json", KIND)


# --- written whole --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["replace", "fsync", "chmod"])
@pytest.mark.parametrize("fault", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_the_old_file_alone(tmp_path, monkeypatch, step, fault):
    path = tmp_path / "thing"
    path.write_bytes(b"old")

    def fail(*_):
        raise fault

    monkeypatch.setattr(os, step, fail)
    with pytest.raises((OSError, KeyboardInterrupt)) as error:
        files.write_whole(path, b"new", what="thing")
    if isinstance(fault, OSError):
        assert "cannot write the thing (No space" in str(error.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_temporary_file_of_a_killed_process_goes_with_a_later_file(tmp_path):
    code = f"""
import os, signal
from conformal_retrievers.data.files import write_whole
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_whole({str(tmp_path / "thing")!r}, b"new", what="thing")
"""
    subprocess.run([sys.executable, "-c", code])
    [left] = tmp_path.iterdir()
    files.write_whole(tmp_path / "other", b"new", what="thing")
    assert left.exists()  # it may be another process's that is still writing
    os.utime(left, (0, 0))
    files.write_whole(tmp_path / "other", b"new", what="thing")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_file_may_have_the_longest_name(tmp_path):
    files.write_whole(tmp_path / ("n" * 255), b"new", what="thing")
    with pytest.raises(OSError, match="cannot write the thing"):
        files.write_whole(tmp_path / ("n" * 256), b"new", what="thing")


@pytest.mark.parametrize("unwritable", ["none/thing", "file/thing", ".", "pipe"])
def test_a_path_that_cannot_be_written_is_named(tmp_path, unwritable):
    (tmp_path / "file").write_bytes(b"old")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="cannot write the thing") as error:
        files.write_whole(tmp_path / unwritable, b"new", what="thing")
    assert str(tmp_path) in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "pipe"}


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)

    def write(file):
        assert os.fstat(file.fileno()).st_mode & 0o077 == 0  # as long as it is not that file
        file.write(b"new")

    files.write_whole(link, write, what="thing")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_new_file_is_as_readable_as_any(tmp_path, monkeypatch):
    (tmp_path / "plain").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    files.write_whole("thing", b"new", what="thing")  # without a folder
    assert (tmp_path / "thing").stat().st_mode == (tmp_path / "plain").stat().st_mode
