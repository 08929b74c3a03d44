"""Which words an answer has, much as SQuAD's evaluation has them (Rajpurkar et al. 2016).

Case, punctuation and the articles of English do not count. In scripts without spaces between words,
each character with its marks is a word.
"""

import re
from unicodedata import category, decimal, normalize

ABBREVIATION = re.compile(r"\b(?:[^\W\d_]\.){2,}")  # U.S.
# Not of Japanese, Chinese, Thai, Lao, Burmese or Khmer, where no spaces part words: each is one.
LETTER = r"[^\W\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"
WITHIN = re.compile(rf"['’`]|(?<=\d),(?=\d{{3}}(?!{LETTER}))")  # what joins: don't, 1,000
# Vowel signs of Hindi, Thai and Khmer, which `\w` has not; C++; the blood groups AB- and AB+.
MARKS = "".join(c for c in map(chr, range(0x300, 0x1900)) if category(c)[0] == "M")
DIGITS = r"\d+(?:[.,:/]\d+)*|[〇一二三四五六七八九十百千万億兆]"  # 3万5千 and 二十五 are one word
NUMBER = rf"(?<!{LETTER})-[$€£¥]?\d[\d.,:/]*(?<=\d)(?!{LETTER})|(?:{DIGITS})+{LETTER}*"
# Minus signs, marks and digits of Arabic and others, one of two Japanese dashes, Greek accents.
SAME = str.maketrans("−–٫٬〜άέήίόύώ", "--.,~αεηιουω")
SAME |= {i: ord("0") + decimal(chr(i)) for i in range(0x660, 0x1900) if category(chr(i)) == "Nd"}
LETTERS = rf"\b\w{{1,2}}-(?![\w-])|(?:{LETTER}[{MARKS}]*)+[+#]*|\w[{MARKS}]*"
WORD = re.compile(f"{NUMBER}|{LETTERS}|[^\\w\\s]")
# Before a word: in plan A, and in the answer A, it is none.
ARTICLE = re.compile(r"(?<![\w-])(?:a|[Aa]n|[Tt]he|THE)\s+(?=\w)")
EXPONENT = re.compile("(?=[²³¹⁰⁴-⁹])")  # which is normalised to a digit: 10³ is not 103
FIRST_A = re.compile(r"(^|[.!?]\s)\s*A\s+(?=\w)")  # of a sentence
SYMBOLS = {"Sm", "Sc", "So"}  # categories of ≤, €, ✓: what tells answers apart, as a word does


def words_of(answer: str, *, drop_first_a: bool = True) -> list[str]:
    """Return the words of an answer, in lower case.

    Symbols are words, too, since they may be all that differs. The first A of a sentence is an
    article, or the answer to a choice of A, B and C, where it is not dropped.

    >>> words_of("The  Eiffel-Tower, in “Paris”, U.S."), words_of("-3.5 of 1,000")
    (['eiffel', 'tower', 'in', 'paris', 'us'], ['-3.5', 'of', '1000'])
    >>> words_of("a plan A, ≤ 19,99 €")
    ['plan', 'a', '≤', '19,99', '€']
    """
    text = normalize("NFKC", EXPONENT.sub(" ", answer))
    text = FIRST_A.sub(r"\1 " if drop_first_a else r"\g<0>", text)
    text = ARTICLE.sub(" ", text).lower().translate(SAME)
    text = WITHIN.sub("", ABBREVIATION.sub(lambda found: found[0].replace(".", ""), text))
    words = WORD.findall(text)
    return [w for w in words if w[-1].isalnum() or len(w) > 1 or w == "%" or category(w) in SYMBOLS]


def has_words(text: str, reference: str) -> bool:
    """Return whether the words of a reference stand in a text in a row.

    >>> has_words("It stands in Paris.", "Paris"), has_words("In 1990.", "19")
    (True, False)
    """
    if not (wanted := words_of(reference)):
        return reference.strip() in text
    words = words_of(text, drop_first_a="a" not in wanted)
    return f" {' '.join(wanted)} " in f" {' '.join(words)} "
