"""Text cut into sentences; code, tables and lists stay whole; nothing of any text is lost."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conformal_retrievers.cli.docstrings import standard_library_docstrings
from conformal_retrievers.data.sentences import splitter
from conformal_retrievers.data.sentences.split import LIMIT, NAME, sentences_in

OURS = splitter("sentences")


def cut(text):
    """Return the sentences of a text, once it is checked that their ranges are exact."""
    ranges = OURS(text)
    pieces = [text[start:end] for start, end in ranges]
    if not text.strip():
        assert ranges == ((0, len(text)),)
        return pieces
    assert all(piece and piece == piece.strip() for piece in pieces)
    for (_, end), (start, _) in pairwise([(0, 0), *ranges, (len(text), len(text))]):
        assert end <= start
        assert not text[end:start].strip()
    return pieces


LINES = ["```", "~~~", "````", "    x = 1.", "\tif a:", "| a | b |", "|---|---|", "a | b", "---"]
LINES += ["--- | ---", "===", "# Title", "- one. two", "  - inner", "1. One. Two", "3) three", " "]
LINES += ["Text. More text", "and on", "", "+---+", "<table>", "<td>A. B", "</table>", "* * *"]
LINES += ["A long line of text that goes on and on. It has two sentences and no end"]
LINE_BREAKS = ["\n", "\r\n", "\r", "\n\n"]
ANY_TEXT = (
    st.text(max_size=400)
    | st.text(
        st.sampled_from("aB1 .。!?؟।,;()「」“”„'\"\n\r\t\f\x00\u0301\u200d\u2028\u2029👨👩文ไ🇩🇪"),
        max_size=400,
    )
    | st.builds(
        lambda line_break, lines: line_break.join(lines),
        st.sampled_from(LINE_BREAKS),
        st.lists(st.sampled_from(LINES), max_size=15),
    )
)
UNIT = st.text(st.sampled_from("ab. 。\n\u0301\u200d👩文"), min_size=1, max_size=12)


@given(ANY_TEXT)
@example("Good \ud800 text. \ud83d\udc00 More of it.")
def test_ranges_of_any_text_are_exact(text):
    cut(text)


@given(UNIT, st.integers(50, 400))
def test_ranges_of_long_repetitions_are_exact_and_within_the_limit(unit, times):
    assert all(len(piece) <= LIMIT for piece in cut(f"Sentences: {unit * times}"))


CODE = "```python\nx = 1.  # One. Two.\n\n\ny = 2.  # Three. Four.\n```"
TABLE = "| Name | Value |\n|---|:-:|\n| It ends. Or not | 3.4. So |"
LIST = "- One. Two.\n- Three\n  and more. Yes.\n\t* Inner. Two.\n- Four"
UNITS = [CODE, CODE.replace("`", "~"), TABLE, LIST]
UNITS += [
    "````\n```\nIt ends. Or not.\n````",
    "<table>\n\n<td>It ends. Or not.\n</table>",
    "<pre>It ends. Or not.\n\nHere too. So.</pre>",
    "1. One. Two.\n2. Three. Four.",
    "1) One. Two.\n2) Three.",
    "• One. Two.\n• Three.",
    "* One. Two.\n  ```\n  code. More.\n\n  code\n  ```\n* Three.",
    "+---+---+\n| It ends. Or not | C |\n+---+---+",
    "| It ends. Or not | Here too. So |",
    "Name | Value\n--- | ---\nIt ends. Or not | Here too. So",
    "    def f():\n        return 1.  # It ends. Or not.",
    "\tx  # It ends. Or not.\n\ty  # Here too",
    "    One. Two.",
    "    ```\n    It ends. Or not.\n\n    Here too. So.\n    ```",
    "- A long item that is wrapped, whose\nnext line is not indented. It ends.\n- Another.",
]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_code_tables_and_lists_are_not_cut(unit, line_break):
    text = f"One. Two.\n\n{unit}\n\nThree. Four.".replace("\n", line_break)
    unit = unit.replace("\n", line_break)
    assert cut(text) == ["One.", "Two.", unit.strip(), "Three.", "Four."]
    assert cut(unit) == [unit.strip()]


@pytest.mark.parametrize("unit", [u for u in UNITS if not u[0].isspace()])
def test_units_need_no_blank_line_around_them(unit):
    end = "# Next" if unit[:1] in "-*1•" else "Three. Four."
    assert cut(f"One. Two:\n{unit}\n{end}")[:3] == ["One.", "Two:", unit]


def test_code_that_is_not_closed_goes_to_the_end():
    for fence in ("```", "~~~", "<pre>"):
        code = f"{fence}\nIt ends. Or not.\n\nHere too."
        assert cut(f"One. Two.\n{code}") == ["One.", "Two.", code]


def test_what_follows_a_closed_table_is_text():
    for table in ("<table><td>It ends. Or not.</table>", "<TABLE>\n\nIt ends. Or not.</Table>"):
        for indent in ("", "    "):
            assert cut(f"{indent}{table}\nThree. Four.") == [table, "Three.", "Four."]


def test_units_are_not_cut_whatever_their_length():
    table = "\n".join(f"| row {i} | It ends. Or not. |" for i in range(LIMIT))
    assert cut(f"One.\n\n{table}\n\nTwo.") == ["One.", table, "Two."]
    bullets = f"- {'It ends. Or not. ' * LIMIT}\n- More"
    assert cut(f"One.\n\n{bullets}\n\nTwo.") == ["One.", bullets, "Two."]


def test_a_list_of_one_that_is_longer_than_a_sentence_may_be_is_a_paragraph():
    item = f"1. {'This is a sentence. ' * 60}".strip()
    assert cut(item)[:2] == ["1. This is a sentence.", "This is a sentence."]
    assert cut(item[: LIMIT - 1]) == [item[: LIMIT - 1].strip()]


def test_what_only_looks_like_a_unit_is_text():
    assert cut("It was in May\n2019. The next.") == ["It was in May\n2019.", "The next."]
    assert cut("Title\n=====\nOne. Two.") == ["Title\n=====", "One.", "Two."]
    indented = cut("    An indented line. It\nbegins a paragraph.")
    assert indented == ["An indented line.", "It\nbegins a paragraph."]
    barred = cut("One | two. It\nis or | is not. Yes.")
    assert barred == ["One | two.", "It\nis or | is not.", "Yes."]
    assert cut("One\n---\nTwo\n***\nThree") == ["One\n---", "Two\n***", "Three"]


def test_a_line_break_is_white_space_unless_the_line_is_a_heading_or_short():
    wrapped = "This text is wrapped at about\nforty characters, as e-mail\nIs. It ends."
    assert cut(wrapped) == [wrapped[: wrapped.index(" It")], "It ends."]
    long = "This is a paragraph of a page, whose lines are not wrapped at all"
    assert cut(f"Contact us\n{long}\n{long}.") == ["Contact us", f"{long}\n{long}."]
    assert cut(f"{long}\nRead more\n{long}.") == [f"{long}\nRead more", f"{long}."]
    assert cut(f"so\n{long[0].lower()}{long[1:]}") == [f"so\n{long[0].lower()}{long[1:]}"]
    assert cut(f"{long}\nRead more\nGo on") == [f"{long}\nRead more", "Go on"]
    friends = "The friends\n, who came in great numbers, left."
    assert cut(friends) == [friends]
    assert cut("## The results\nthey are good") == ["## The results", "they are good"]
    assert cut("Page one\fPage two\u2029Page three") == ["Page one", "Page two", "Page three"]


SENTENCES = [
    ["Dr. Smith paid $3.50 to J. R. Jones Jr. in the U.S. market.", "He left."],
    ["See e.g. Fig. 3, i.e. the left one, vs. that of Lee et al. (2001).", "It fell by 3.4 %."],
    ['He said "Stop it."', "Then he left!", "Did he?", "Yes…"],
    ["他走了！", "她问：“去哪里？”", "好。"],
    ["これは文です。", "そうですか？", "「いい。」"],
    ["هل هذا سؤال؟", "نعم، هذا جواب.", "یہ ایک ہے۔", "نعم."],
    ["यह एक वाक्य है।", "क्या?", "हाँ!"],
    ["ประเทศไทยมีประชากรมาก.", "ใช่."],
    ["Սա մեկ է։", "Սա երկու է։"],
    ["ဟုတ်တယ်။", "မဟုတ်ဘူး။"],
    ["Это предложение.", "А это?", "Да!"],
    ["A family 👨‍👩‍👧‍👦 of four.", "Flags 🇩🇪🇫🇷!", "Élève e\u0301le\u0300ve.", "So."],
    ["The variant H2A.Z is in.", "It is so."],
    ["Call System.Net.Http in os.path.", "It needs >=2.7, !=3.0.*, !=3.1.*.", "So it is."],
    ["He came.", '"Go," she said.', "(And so on)."],
    ['A 5" disk.', '"No matter," he said.', "It is."],
    ["It is c.d here.", "He met Dr. Smith.", "(So)!", "No."],
    ["He said: e.g. 5, i.e. a few!", "Really?!", "Yes.", "„Gut.“", "Dann."],
    ["字。", "他说。", "“好。”", "今日は。", "「はい。」"],
    ["价格是１．５元。", "iPhone很贵！", "2020年。", "他说：“好。iPhone很贵。”", "好。"],
]


@pytest.mark.parametrize("sentences", SENTENCES)
def test_sentences_of_many_scripts_are_found(sentences):
    between = "" if ord(sentences[0][0]) in range(0x3000, 0xA000) else " "
    assert cut(between.join(sentences)) == sentences


def test_a_blank_line_ends_a_sentence_that_has_no_end():
    for blank in ("\n\n", "\r\n\r\n", "\r\r", "\n \t\n", "\n\n\n"):
        assert cut(f"No end{blank}one. Two") == ["No end", "one.", "Two"]


def test_a_lone_surrogate_ends_no_sentence():
    assert cut("The fish \ud83d Swims fast.") == ["The fish \ud83d Swims fast."]


def test_a_sentence_may_end_without_white_space():
    assert len(cut("It works well.Then it fails in 2010.The end.")) == 3


def test_what_has_no_letter_is_no_sentence():
    assert cut("See: 1. 2. 3. Go. 4. 5. On.") == ["See: 1.", "2. 3. Go.", "4. 5. On."]


def test_a_long_sentence_is_cut_between_lines_else_words_else_characters_as_seen():
    lines = "\n".join(["word " * 60 + "end"] * 5)
    assert [len(p) for p in cut(lines)] == [3 * 303 + 2, 2 * 303 + 1]
    assert [len(p) for p in cut("word " * 500)] == [999, 999, 499]
    assert [len(p) for p in cut("文" * 1500)] == [1000, 500]
    family = "👨‍👩‍👧‍👦"
    assert [len(p) % len(family) for p in cut(family * 300)] == [0, 0, 0]
    assert [p[:2] for p in cut("e\u0301" * 1200)] == ["e\u0301"] * 3
    assert [len(p) % 2 for p in cut("\U0001f1e9\U0001f1ea" * 1001)] == [0] * 3


def test_text_in_one_line_is_cut_as_its_parts_are():
    sentences = [f"这是第{i}个句子，它不太长。" for i in range(2000)]
    assert cut("".join(sentences)) == sentences
    sentences = [f"This is sentence {i}, which Dr. Smith wrote." for i in range(2000)]
    assert cut(" ".join(sentences)) == sentences


def test_a_sentence_that_is_nearly_as_long_as_it_may_be_ends_where_it_ends():
    for words in (170, 180, 190, 195):
        sentences = [f"It {'word ' * words}ends.", f"It {'also ' * words}ends.", "So it is."]
        assert cut(" ".join(sentences)) == sentences


def test_another_language_has_other_abbreviations():
    text = "Am 3. Mai kam er. Dann ging er."
    german = [text[start:end].strip() for start, end in sentences_in(text, "de")]
    assert german == ["Am 3. Mai kam er.", "Dann ging er."]


HOSTILE = ["\n", "\r", "|\n", "```\n", "~~~\n\n", "- a\n", "#\n", "    a\n", "<pre\n", "---\n"]
HOSTILE += [". ", "a. ", "a|b\n---|---\n", '"a. ', "1. a\n\n", "1. ", "<table></table>\n", "\n "]
HOSTILE += ["a\n", "a\n\n", "\u0301", "🇩", "a", ".", "文。", "|", "(", "-", "H2A.Z", '."', ".("]


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_is_cut_in_linear_time(unit):
    """Were the time quadratic, each would take minutes."""
    cut(unit * (100_000 // len(unit)))


@pytest.mark.slow
def test_ranges_of_the_docstrings_of_the_standard_library_are_exact():
    docstrings = standard_library_docstrings().values()
    assert len(docstrings) > 4000
    assert sum(len(cut(text)) for text in docstrings) > 10_000


def test_the_extra_is_named_where_the_segmenter_is_not_installed():
    code = """
import sys
sys.modules["sentencex"] = None
from conformal_retrievers.data.sentences import cut
def mine(text): return [(0, len(text))]
print(cut(["One. Two."], mine).split)
cut(["One. Two."], "sentences")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "__main__.mine\n"
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ModuleNotFoundError: sentencex")
    assert 'pip install "conformal-retrievers[text]"' in error


def test_the_name_has_the_segmenter_its_version_and_the_limit():
    assert OURS.name == NAME
    assert NAME.startswith("sentences(rules 3, sentencex 1.")
    assert str(LIMIT) in NAME
