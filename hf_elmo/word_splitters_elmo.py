r"""How raw text becomes words: one regular expression for each word splitter.

Each expression matches one word and is run by the Rust tokenizer (Oniguruma syntax), which drops what lies between
the matches. Words are pieces of the text, never rewritten, so offsets stay true: `"` does not become two backticks,
nor `(` `-LRB-`. The expression begins with a comment, `(?#treebank)`: so tokenizer.json holds the splitter's name.
"""

import json
import re

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer, Split

# What Python's str.split() takes for a blank: Unicode white space and four control characters.
_BLANK = r"\s\x1c-\x1f"
# A mark or symbol by itself, with what modifies it: accents, emoji sequences, the two letters of a flag.
_SYMBOL = (
    r"[\x{1F1E6}-\x{1F1FF}]{2}"
    rf"|[^{_BLANK}](?:[\p{{M}}\x{{1F3FB}}-\x{{1F3FF}}]|\x{{200D}}[\p{{S}}\x{{1F3FB}}-\x{{1F3FF}}])*"
)

_NO_WORD_FOLLOWS = r"(?!\w)"
# Words that the Penn Treebank cuts in two, and the short forms that it cuts off.
_FUSED = (
    r"(?<![\w'’\-])(?i:can(?=not(?!\w))|(?:gon(?=na)|got(?=ta)|wan(?=na)|gim(?=me)|lem(?=me))(?=\w\w(?!\w))"
    r"|more(?=['’]n(?!\w))|d(?=['’]ye(?!\w))|['’]t(?=(?:is|was)(?!\w)))"
)
_SHORTENED = r"['’](?i:s|m|d|t|re|ve|ll|ye)(?!\w)|['’]n(?![\w'’])|(?<!\w)['’][nN]['’](?!\w)|(?<!\w)['’]\d\ds?(?!\w)"
_SHORTENED_FOLLOWS = r"(?=['’](?:(?i:s|m|d|t|re|ve|ll|ye)(?!\w)|n(?![\w'’])))"
# Abbreviations that keep their full stop, and those that lose it at the end of the text.
_ABBREVIATED = (
    r"Mr|Mrs|Ms|Dr|Prof|Sen|Rep|Gov|Gen|Lt|Col|Capt|Sgt|Maj|Cmdr|Adm|Rev|Hon|Pres|St|Messrs|Mmes|Ph\.D"
    r"|Jan|Feb|Aug|Sept|Oct|Nov|Dec"
)
_ABBREVIATED_INSIDE = r"Jr|Sr|Inc|Corp|Co|Ltd|Bros|etc|vs|Ave|Blvd|Rd|Mt|Ft|Dept|Univ|approx"
_AT_THE_END = rf"(?=[{_BLANK}\"'’”»)\]}}]*\z)"
_WITH_FULL_STOP = (
    rf"(?<![\p{{L}}\p{{N}}.])(?:(?:\p{{L}}\.){{2,}}|(?:{_ABBREVIATED})\.|(?:{_ABBREVIATED_INSIDE})\.(?!{_AT_THE_END})"
    rf"|\p{{Lu}}\.(?=[{_BLANK}]+\p{{Lu}})|Nos?\.(?=[{_BLANK}]*\d))(?![\w\-])"
)
# Inside a word: anything but marks and symbols, yet slashes, single hyphens and mathematical signs too.
_LETTER = rf"(?:[^{_BLANK}\p{{P}}\p{{Sc}}\p{{So}}<>`nN]|[nN](?!['’][tT](?!\w))|[_/\\‐‑]|(?<!-)-(?!-))"
_INSIDE = rf"\.(?=[\p{{L}}\p{{N}}]|-(?!-))|(?<=\d)[,:](?=\d)|(?<=\w)(?!{_SHORTENED_FOLLOWS})['’](?=\w)"
_TREEBANK_WORD = (
    rf"(?:{_LETTER}|(?<![^{_BLANK}])\.(?=[\p{{L}}\d]))(?:{_LETTER}|{_INSIDE})*"
    # A full stop ends no sentence where a small letter, a number or another mark follows.
    rf"(?:\.(?=[{_BLANK}]+[\p{{Ll}}\d])|\.(?=[{_BLANK}]*[,;:?!]))?"
)

# Words of other languages: letters, digits and accents, joined by one apostrophe, hyphen, middle dot, geresh or full
# stop between two of them, and by a decimal sign between digits.
_LETTERS = rf"(?:[^{_BLANK}\p{{P}}\p{{S}}]|_)+"
_JOINED = rf"{_LETTERS}(?:(?:['’ʼ\-‐‑·׳״.]|(?<=\d)[,:](?=\d)){_LETTERS})*"

# A splitter by name -> the expression that matches one word.
WORD_PATTERNS: dict[str, str] = {
    "whitespace": rf"[^{_BLANK}]+",
    "treebank": "|".join(
        [
            r"\.{2,}|-{2,}|``|''",
            _FUSED,
            rf"(?i:n['’]t){_NO_WORD_FOLLOWS}",
            _SHORTENED,
            _WITH_FULL_STOP,
            _TREEBANK_WORD,
            _SYMBOL,
        ]
    ),
    "punctuation": "|".join([r"\.{2,}|-{2,}", _JOINED, _SYMBOL]),
}


def build_word_splitter(name: str) -> PreTokenizer:
    """Builds the Rust pre-tokenizer of a word splitter.

    Args:
        name: `whitespace` (the text is tokenized already; words are those of Python's `str.split()`), `treebank`
            (English, as the Penn Treebank splits it) or `punctuation` (any language with blanks between words).

    Raises:
        ValueError: The name is none of these.
    """
    if name not in WORD_PATTERNS:
        choices = ", ".join(repr(choice) for choice in WORD_PATTERNS)
        raise ValueError(f"word_splitter {name!r} is unknown: choose one of {choices}.")
    return Split(Regex(f"(?#{name}){WORD_PATTERNS[name]}"), behavior="removed", invert=True)


def word_splitter_name(tokenizer: Tokenizer) -> str | None:
    """The name of the word splitter that a tokenizer holds; None where its pre-tokenizer is none of ours."""
    pattern = (json.loads(tokenizer.to_str())["pre_tokenizer"] or {}).get("pattern") or {}
    found = re.match(r"\(\?#(\w+)\)", pattern.get("Regex", ""))
    return found.group(1) if found else None


__all__ = ["WORD_PATTERNS", "build_word_splitter", "word_splitter_name"]
