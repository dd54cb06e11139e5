"""The public ELMo checkpoints: where each one is, what it is stored as and which words it expects.

Only what a source states is here; what nobody states is `None` or empty and shows as unknown. What a person would
write in prose (training text, tokenisation, limits, citations) is in `model_cards/`, see `facts.py`. AllenNLP's
transformer ELMo is left out: it is another architecture.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .errors import ConversionError

NOT_VERIFIED = "The address was put together from the repository's usual pattern and has not been tried."


@dataclass(frozen=True)
class Sizes:
    """The sizes of a biLM as its source states them.

    Args:
        cell_size: Cells of an LSTM layer in one direction.
        projection_size: Its output; a word's vector has twice as many elements.
        num_filters: Character filters of all widths together.
        num_highway_layers: Highway layers after them.
        parameters: Number of parameters in words, where it is stated.
    """

    cell_size: int
    projection_size: int
    num_filters: int
    num_highway_layers: int
    parameters: str | None = None


@dataclass(frozen=True)
class CatalogEntry:
    """One published checkpoint.

    Args:
        name: Its name in this catalog.
        title: What it is, in a few words.
        languages: ISO 639 codes; empty where the text is no human language.
        publisher: Who published the files.
        format: The name in `formats.FORMATS` of what the files are, unpacked.
        page: Where the source describes the checkpoint.
        urls: The files, where their addresses are known; all of them are needed.
        word_splitter: How raw text is best cut into the words of the training text.
        sizes: The architecture as stated; it is read from the files in any case.
        licence: The Hub's identifier of the licence of the weights; `None` where the source states none.
        figures: What the source measured -> the figure.
        facts: The file in `model_cards/` with what several checkpoints have in common.
        notes: What to know about the files.
    """

    name: str
    title: str
    languages: tuple[str, ...]
    publisher: str
    format: str
    page: str
    urls: tuple[str, ...] = ()
    word_splitter: str = "punctuation"
    sizes: Sizes | None = None
    licence: str | None = None
    figures: tuple[tuple[str, str], ...] = ()
    facts: str | None = None
    notes: tuple[str, ...] = ()


ALLENNLP = "https://s3-us-west-2.amazonaws.com/allennlp/models/elmo"
ALLENNLP_PAGE = "https://allennlp.org/elmo"
DEEPPAVLOV = "http://files.deeppavlov.ai/deeppavlov_data"
DEEPPAVLOV_PAGE = "http://docs.deeppavlov.ai/en/master/features/pretrained_vectors.html"
NLPL = "http://vectors.nlpl.eu/repository"

SMALL = Sizes(1024, 128, 2048, 1, "13.6 million")
MEDIUM = Sizes(2048, 256, 2048, 1, "28.0 million")
ORIGINAL = Sizes(4096, 512, 2048, 2, "93.6 million")
LIKE_ORIGINAL = Sizes(4096, 512, 2048, 2)

BENCHMARK_PERPLEXITY = ("Perplexity on the 1 Billion Word Benchmark, average of both directions, in the paper", "39.7")


def allennlp_figures(srl: str, parsing: str) -> tuple[tuple[str, str], ...]:
    """What AllenNLP's page reports for its English models."""
    return (("F1 of semantic role labelling", srl), ("F1 of constituency parsing", parsing))


def allennlp_english(
    name: str, title: str, stem: str, sizes: Sizes, figures: tuple[tuple[str, str], ...], facts: str | None
) -> CatalogEntry:
    """One of AllenNLP's own English models."""
    return CatalogEntry(
        name=name,
        title=title,
        languages=("en",),
        publisher="AllenNLP, Allen Institute for AI",
        format="allennlp",
        page=ALLENNLP_PAGE,
        urls=tuple(f"{ALLENNLP}/{stem}/elmo_{stem}_{ending}" for ending in ("options.json", "weights.hdf5")),
        word_splitter="treebank",
        sizes=sizes,
        figures=figures,
        facts=facts,
    )


def english() -> list[CatalogEntry]:
    """English, and what else AllenNLP's page lists for English."""
    checkpoint = f"{ALLENNLP}/2x4096_512_2048cnn_2xhighway_tf_checkpoint"
    pubmed = f"{ALLENNLP}/contributed/pubmed/elmo_2x4096_512_2048cnn_2xhighway"
    return [
        allennlp_english(
            "elmo-small",
            "English ELMo, small",
            "2x1024_128_2048cnn_1xhighway",
            SMALL,
            allennlp_figures("83.62", "93.12"),
            "elmo-benchmark",
        ),
        allennlp_english(
            "elmo-medium",
            "English ELMo, medium",
            "2x2048_256_2048cnn_1xhighway",
            MEDIUM,
            allennlp_figures("84.04", "93.60"),
            "elmo-benchmark",
        ),
        allennlp_english(
            "elmo-original",
            "English ELMo, the paper's model",
            "2x4096_512_2048cnn_2xhighway",
            ORIGINAL,
            (BENCHMARK_PERPLEXITY, *allennlp_figures("84.63", "93.85")),
            "elmo-benchmark",
        ),
        allennlp_english(
            "elmo-original-5.5b",
            "English ELMo, trained on 5.5 billion tokens",
            "2x4096_512_2048cnn_2xhighway_5.5B",
            ORIGINAL,
            allennlp_figures("84.93", "94.01"),
            None,
        ),
        CatalogEntry(
            name="elmo-original-lm",
            title="English ELMo, the paper's language model with its softmax",
            languages=("en",),
            publisher="AllenNLP, Allen Institute for AI",
            format="tensorflow-checkpoint",
            page="https://github.com/allenai/bilm-tf",
            urls=(
                *(
                    f"{checkpoint}/{file}"
                    for file in (
                        "options.json",
                        "model.ckpt-935588.index",
                        "model.ckpt-935588.data-00000-of-00001",
                    )
                ),
                f"{ALLENNLP}/vocab-2016-09-10.txt",
            ),
            word_splitter="treebank",
            sizes=ORIGINAL,
            figures=(BENCHMARK_PERPLEXITY,),
            facts="elmo-benchmark",
        ),
        CatalogEntry(
            name="elmo-google-hub",
            title="English ELMo, Google's TF-Hub module",
            languages=("en",),
            publisher="Google",
            format="deeppavlov-hub",
            page="https://www.tensorflow.org/hub/modules/google/elmo/2",
            word_splitter="treebank",
            notes=("DeepPavlov's elmo_en_1billion is this module.",),
        ),
        CatalogEntry(
            name="elmo-pubmed",
            title="English ELMo for biomedical text, PubMed",
            languages=("en",),
            publisher="contributed to AllenNLP",
            format="allennlp",
            page=ALLENNLP_PAGE,
            urls=(f"{pubmed}_options.json", f"{pubmed}_weights_PubMed_only.hdf5"),
            word_splitter="treebank",
            sizes=LIKE_ORIGINAL,
        ),
        CatalogEntry(
            name="bioelmo",
            title="BioELMo: English ELMo for biomedical text",
            languages=("en",),
            publisher="Andy-jqa on GitHub",
            format="allennlp",
            page="https://github.com/Andy-jqa/bioelmo",
            word_splitter="treebank",
            figures=(("Perplexity on held-out text, average of both directions", "31.37"),),
            notes=("The page links to Google Drive, where files are fetched with a browser.",),
        ),
    ]


def contributed() -> list[CatalogEntry]:
    """Single languages: options and HDF5 from their own places."""
    portuguese = f"{ALLENNLP}/contributed/pt"
    japanese = "https://exawizardsallenlp.blob.core.windows.net/data"
    basque = "https://schweter.eu/cloud/eu-elmo"
    return [
        CatalogEntry(
            name="elmo-portuguese-wikipedia",
            title="Portuguese ELMo, Wikipedia",
            languages=("pt",),
            publisher="contributed to AllenNLP",
            format="allennlp",
            page=ALLENNLP_PAGE,
            urls=(f"{portuguese}/wikipedia/options.json", f"{portuguese}/wikipedia/elmo_pt_weights.hdf5"),
        ),
        CatalogEntry(
            name="elmo-portuguese-brwac",
            title="Portuguese ELMo, brWaC",
            languages=("pt",),
            publisher="contributed to AllenNLP",
            format="allennlp",
            page=ALLENNLP_PAGE,
            urls=(f"{portuguese}/brwac/options.json", f"{portuguese}/brwac/elmo_pt_weights_dgx1.hdf5"),
            notes=("Folder and file name of the weights are from different sources; not tried together.",),
        ),
        CatalogEntry(
            name="elmo-japanese",
            title="Japanese ELMo",
            languages=("ja",),
            publisher="ExaWizards",
            format="allennlp",
            page=ALLENNLP_PAGE,
            urls=(f"{japanese}/options.json", f"{japanese}/weights.hdf5"),
            word_splitter="whitespace",
        ),
        CatalogEntry(
            name="elmo-german-wikipedia",
            title="German ELMo, Wikipedia with its discussion pages",
            languages=("de",),
            publisher="T-Systems on site services",
            format="allennlp",
            page="https://github.com/t-systems-on-site-services-gmbh/german-elmo-model",
            licence="bsd-2-clause",
            notes=(
                "The page lists an archive in parts without links to them. It holds weights.hdf5 and options.json, "
                "and the training checkpoint with its vocabulary.",
            ),
        ),
        CatalogEntry(
            name="elmo-basque",
            title="Basque ELMo",
            languages=("eu",),
            publisher="Stefan Schweter",
            format="allennlp",
            page="https://github.com/stefan-it/plur",
            urls=(f"{basque}/options.json", f"{basque}/weights.hdf5"),
            figures=(("F1 of named entities in EIEC, mean of three runs", "82.01"),),
        ),
        CatalogEntry(
            name="seqvec",
            title="SeqVec: ELMo for protein sequences",
            languages=(),
            publisher="Rost Lab, Technical University of Munich",
            format="allennlp",
            page="https://github.com/mheinzinger/SeqVec",
            urls=("https://rostlab.org/~deepppi/seqvec.zip",),
            word_splitter="whitespace",
            figures=(
                ("Secondary structure in three states, accuracy", "79 % ± 1"),
                ("Subcellular localisation in ten classes, accuracy", "68 % ± 1"),
            ),
        ),
    ]


RUSSIAN_TEXTS = {
    # key -> (title, module, perplexity)
    "wiki": ("Wikipedia", "elmo_ru-wiki_600k_steps", "43.692"),
    "news": ("news", "elmo_ru-news_wmt11-16_1.5M_steps", "49.876"),
    "twitter": ("Twitter", "elmo_ru-twitter_2013-01_2018-04_600k_steps", "94.145"),
}


def deeppavlov() -> list[CatalogEntry]:
    """DeepPavlov's Russian models: modules for vectors, and training checkpoints with the softmax."""
    modules = [
        CatalogEntry(
            name=f"elmo-ru-{key}",
            title=f"Russian ELMo, {title}",
            languages=("ru",),
            publisher="DeepPavlov",
            format="deeppavlov-hub",
            page=DEEPPAVLOV_PAGE,
            urls=(f"{DEEPPAVLOV}/{module}.tar.gz",),
            licence="apache-2.0",
            figures=(("Perplexity", perplexity),),
            facts=f"elmo-ru-{key}",
        )
        for key, (title, module, perplexity) in RUSSIAN_TEXTS.items()
    ]
    checkpoints = [
        (f"{key}-lm{simple}", f"{title}, language model{' (simple)' * bool(simple)}", key, file)
        for key, (title, *_) in RUSSIAN_TEXTS.items()
        for simple in ("", "-simple")
        for file in [f"elmo-lm-ready4fine-tuning-ru-{key}{simple}"]
    ]
    reduced = "elmo_news_wmt11-16-simple_reduce_vocab"
    checkpoints.append(("news-lm-simple-reduced", "news, language model (simple, fewer words)", "news", reduced))
    return modules + [
        CatalogEntry(
            name=f"elmo-ru-{suffix}",
            title=f"Russian ELMo, {title}",
            languages=("ru",),
            publisher="DeepPavlov",
            format="tensorflow-checkpoint",
            page=DEEPPAVLOV_PAGE,
            urls=(f"{DEEPPAVLOV}/{file}.tar.gz",),
            licence="apache-2.0",
            facts=f"elmo-ru-{key}",
            notes=(
                "A training checkpoint, about 4 GB.",
                "The source does not state in what the files named simple differ.",
            )[: 1 + ("simple" in suffix)],
        )
        for suffix, title, key, file in checkpoints
    ]


def nlpl() -> list[CatalogEntry]:
    """RusVectores' Russian and the Norwegian models, in the NLPL repository."""
    russian = "https://rusvectores.org/en/models/"
    norwegian = "http://wiki.nlpl.eu/Vectors/norlm/norelmo"
    return [
        CatalogEntry(
            name="elmo-ruwikiruscorpora-tokens",
            title="Russian ELMo, national corpus and Wikipedia (tokens)",
            languages=("ru",),
            publisher="RusVectores",
            format="nlpl",
            page=russian,
            urls=(f"{NLPL}/11/195.zip",),
            notes=("Published as ruwikiruscorpora_tokens_elmo_1024_2019.",),
        ),
        CatalogEntry(
            name="elmo-tayga-lemmas",
            title="Russian ELMo, Taiga (lemmas)",
            languages=("ru",),
            publisher="RusVectores",
            format="nlpl",
            page=russian,
            urls=(f"{NLPL}/20/199.zip",),
            word_splitter="whitespace",
            notes=("Published as tayga_lemmas_elmo_2048_2019.",),
        ),
        *(
            CatalogEntry(
                name=name,
                title=title,
                languages=("no",),
                publisher="Language Technology Group, University of Oslo",
                format="nlpl",
                page=norwegian,
                urls=(f"{NLPL}/20/{number}.zip",),
                word_splitter="whitespace" if number == 210 else "punctuation",
                licence="cc-by-4.0",
                notes=(f"Number {number} in the NLPL repository.", NOT_VERIFIED),
            )
            for number, name, title in (
                (210, "elmo-no-wiki-lemmas", "Norwegian ELMo, Wikipedia (lemmas)"),
                (211, "elmo-no-wiki-tokens", "Norwegian ELMo, Wikipedia (tokens)"),
                (217, "elmo-norelmo30", "NorELMo30: Norwegian ELMo, 30 000 target words"),
                (218, "elmo-norelmo100", "NorELMo100: Norwegian ELMo, 100 000 target words"),
            )
        ),
    ]


EMBEDDIA_LANGUAGES = {
    "hr": "Croatian",
    "et": "Estonian",
    "fi": "Finnish",
    "lv": "Latvian",
    "lt": "Lithuanian",
    "sl": "Slovene",
    "sv": "Swedish",
}


def embeddia() -> list[CatalogEntry]:
    """Seven languages of the EMBEDDIA project."""
    return [
        CatalogEntry(
            name=f"elmo-embeddia-{code}",
            title=f"{language} ELMo of EMBEDDIA",
            languages=(code,),
            publisher="EMBEDDIA, University of Ljubljana",
            format="allennlp",
            page="http://hdl.handle.net/11356/1277",
            facts="elmo-embeddia",
            notes=("The repository's page could not be read where this catalog was written; it may state a licence.",),
        )
        for code, language in EMBEDDIA_LANGUAGES.items()
    ]


CROSS_LINGUAL_LANGUAGES = {
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "pt": "Portuguese",
    "sv": "Swedish",
    "de": "German",
}


def cross_lingual() -> list[CatalogEntry]:
    """Wikipedia models that come with matrices into the English space."""
    return [
        CatalogEntry(
            name=f"elmo-crosslingual-{code}",
            title=f"{language} ELMo of CrossLingualContextualEmb",
            languages=(code,),
            publisher="TalSchuster on GitHub",
            format="allennlp",
            page="https://github.com/TalSchuster/CrossLingualContextualEmb",
            word_splitter="treebank" if code == "en" else "punctuation",
            facts="elmo-crosslingual",
            notes=("The page links to Dropbox, where files are fetched with a browser.",),
        )
        for code, language in CROSS_LINGUAL_LANGUAGES.items()
    ]


FIRST_OF_MANY = 136
"""Number of the first archive of ELMoForManyLangs in the NLPL repository; the others follow in order."""

MANY_LANGUAGES = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "ca": "Catalan",
    "cs": "Czech",
    "cu": "Old Church Slavonic",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "eu": "Basque",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "ga": "Irish",
    "gl": "Galician",
    "grc": "Ancient Greek",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "la": "Latin",
    "lv": "Latvian",
    "nl": "Dutch",
    "nb": "Norwegian Bokmål",
    "nn": "Norwegian Nynorsk",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovene",
    "sv": "Swedish",
    "tr": "Turkish",
    "ug": "Uyghur",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh": "Chinese",
}

SEGMENTED_BEFOREHAND = {"ja", "vi", "zh"}
"""Languages whose words blanks and marks do not show; their text is given as words."""


def many_languages() -> list[CatalogEntry]:
    """ELMoForManyLangs: 44 languages, a variant of the architecture."""
    return [
        CatalogEntry(
            name=f"elmo-manylangs-{code}",
            title=f"{language} ELMo of ELMoForManyLangs",
            languages=(code,),
            publisher="HIT-SCIR, Harbin Institute of Technology",
            format="elmoformanylangs",
            page="https://github.com/HIT-SCIR/ELMoForManyLangs",
            urls=(f"{NLPL}/11/{number}.zip",),
            word_splitter="whitespace" if code in SEGMENTED_BEFOREHAND else "punctuation",
            facts="elmo-manylangs",
            notes=("The code of ELMoForManyLangs is under the MIT licence; for the weights none is stated.",),
        )
        for number, (code, language) in enumerate(MANY_LANGUAGES.items(), start=FIRST_OF_MANY)
    ]


CATALOG = MappingProxyType(
    {
        entry.name: entry
        for family in (english, deeppavlov, nlpl, contributed, embeddia, cross_lingual, many_languages)
        for entry in family()
    }
)
"""Name -> entry."""


def near_names(name: str) -> list[str]:
    """Names that contain a text or look like it."""
    containing = [other for other in CATALOG if len(name) > 2 and name.lower() in other]
    return (containing or difflib.get_close_matches(name.lower(), CATALOG, n=5))[:10]


def find(name: str) -> CatalogEntry:
    """The entry of a name.

    Raises:
        ConversionError: When there is none; names that look like it are listed.
    """
    if name in CATALOG:
        return CATALOG[name]
    near = near_names(name)
    hint = f"the nearest are {', '.join(near)}" if near else "`hf-elmo catalog` lists all"
    raise ConversionError(f"The catalog has no checkpoint {name!r}; {hint}.")


def named_by(source: Path) -> CatalogEntry | None:
    """The entry that a source means: where there is no such file, but such a name.

    Raises:
        ConversionError: When there is neither, but the source looks like a name of the catalog.
    """
    name = str(source)
    return None if source.exists() or not (name in CATALOG or name.startswith("elmo-")) else find(name)


def by_language(code: str) -> list[CatalogEntry]:
    """Every entry of a language.

    Args:
        code: An ISO 639 code, in small or capital letters.

    Raises:
        ConversionError: When there is none; the codes that occur are listed.
    """
    found = [entry for entry in CATALOG.values() if code.lower() in entry.languages]
    if not found:
        codes = sorted({language for entry in CATALOG.values() for language in entry.languages})
        raise ConversionError(f"The catalog has nothing in the language {code!r}; it has {', '.join(codes)}.")
    return found
