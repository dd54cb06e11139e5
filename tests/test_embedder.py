"""`ElmoEmbedder`: every sentence gets its own vectors, in order, whatever is around it."""

from itertools import chain, count, islice, repeat
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_elmo import ElmoEmbedder, ElmoForTokenClassification, ElmoTokenizer
from hf_elmo.embedding.batching import batches_by_words, computed_in_halves, grouped
from tests.assertions import PARITY_TOLERANCE, assert_close, assert_far, assert_identical
from tests.embedding_jobs import corpus_lines
from tests.saved_folders import save_folder, varied_model
from tests.shared_files import data_path, leave_out

ROUNDING = 1e-5  # of numbers up to 4, through LSTMs with large weights; a mistake shows at 0.01 and more
EXACT = 1e-6  # of float64, which those weights bring 2e-8 off in long lines
SENTENCES = [["Мама", "мыла", "раму", "."], ["Yes"], [], ["New York", "is", "", "big"], ["Yes"]]


@pytest.fixture(scope="module")
def embedder() -> ElmoEmbedder:
    return ElmoEmbedder(varied_model(), ElmoTokenizer(word_splitter="treebank"), batch_words=64)


@pytest.fixture(scope="module")
def exact_embedder() -> ElmoEmbedder:
    """With float64 inside: the rounding of float32 in its large weights would hide small mistakes."""
    return ElmoEmbedder(varied_model().double(), ElmoTokenizer(word_splitter="treebank"), batch_words=64)


def directly(embedder: ElmoEmbedder, words: list[str]):
    """What the model says of one sentence alone: the mix and the layers, boundaries included."""
    with torch.no_grad():
        inputs = embedder.tokenizer([words], is_split_into_words=True, return_tensors="pt")
        outputs = embedder.model(**inputs, output_hidden_states=True)
    return outputs.last_hidden_state[0].numpy(), np.stack([layer[0].numpy() for layer in outputs.hidden_states])


class TestVectors:
    def test_each_sentence_gets_what_the_model_says_of_it_alone(self, embedder):
        for words, vectors in zip(SENTENCES, embedder.embed(SENTENCES), strict=True):
            assert vectors.dtype == np.float32
            assert_close(vectors, directly(embedder, words)[0][1:-1], ROUNDING)

    @pytest.mark.parametrize(
        ("layers", "choose"),
        [
            ("all", lambda layers: layers),
            ("top", lambda layers: layers[2]),
            ("average", lambda layers: layers.mean(axis=0)),
            (0, lambda layers: layers[0]),
            (-2, lambda layers: layers[1]),
            ([2, 0], lambda layers: layers[[2, 0]]),
        ],
    )
    def test_the_layers_are_those_of_the_model(self, layers, choose, embedder):
        for words, vectors in zip(SENTENCES, embedder.embed(SENTENCES, layers=layers), strict=True):
            assert_close(vectors, choose(directly(embedder, words)[1][:, 1:-1]), ROUNDING)

    @pytest.mark.parametrize(
        ("pool", "apply"),
        [
            ("mean", lambda words: words.mean(axis=-2)),
            ("max", lambda words: words.max(axis=-2)),
            ("sum", lambda words: words.sum(axis=-2)),
            ("first", lambda words: words[..., 0, :]),
            ("last", lambda words: words[..., -1, :]),
        ],
    )
    @pytest.mark.parametrize("layers", ["mix", "all"])
    @pytest.mark.parametrize("boundaries", [False, True])
    def test_pooling_makes_one_vector_of_the_words(self, pool, apply, layers, boundaries, embedder):
        results = embedder.embed(SENTENCES, layers=layers, pool=pool, boundaries=boundaries)
        for words, vector in zip(SENTENCES, results, strict=True):
            expected = directly(embedder, words)[layers == "all"]
            if not boundaries:
                expected = expected[..., 1:-1, :]
            expected = apply(expected) if expected.shape[-2] else np.zeros_like(vector)
            assert_close(vector, expected, ROUNDING)

    def test_boundaries_are_kept_on_request(self, embedder):
        for words, vectors in zip(SENTENCES, embedder.embed(SENTENCES, boundaries=True), strict=True):
            assert_close(vectors, directly(embedder, words)[0], ROUNDING)

    def test_texts_are_split_by_the_tokenizer_and_lists_are_not(self, embedder):
        text, words, whole = embedder.embed(["I can't.", ["I", "ca", "n't", "."], ["I", "can't", "."]])
        assert_close(text, words, ROUNDING)
        assert len(whole) == 3

    def test_tensors_on_request(self, embedder):
        (vectors,) = embedder.embed([["Yes"]], return_tensors="pt")
        assert isinstance(vectors, torch.Tensor)
        assert_identical(vectors, embedder.embed_sentence(["Yes"]))

    def test_a_result_does_not_keep_the_batch_alive(self, embedder):
        for vectors in embedder.embed(SENTENCES, return_tensors="pt"):
            assert vectors.untyped_storage().nbytes() == vectors.nbytes

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_half_precision_is_near(self, dtype, embedder, tmp_path):
        half = ElmoEmbedder.from_pretrained(save_folder(tmp_path / "elmo"), dtype=dtype)
        for ours, expected in zip(half.embed(SENTENCES), embedder.embed(SENTENCES), strict=True):
            assert ours.dtype == (np.float16 if dtype == "float16" else np.float32)
            assert_close(ours, expected, 0.1)

    def test_a_mix_with_layer_norm_sees_one_sentence_at_a_time(self):
        embedder = ElmoEmbedder(varied_model(mix_layer_norm=True), ElmoTokenizer())
        for words, vectors in zip(SENTENCES, embedder.embed(SENTENCES), strict=True):
            assert_close(vectors, directly(embedder, words)[0][1:-1], 1e-5)

    def test_a_tokenizer_without_boundaries_works(self):
        embedder = ElmoEmbedder(varied_model(), ElmoTokenizer(bos_token=None, eos_token=None))
        for words, vectors in zip(SENTENCES, embedder.embed(SENTENCES, boundaries=True), strict=True):
            expected = directly(embedder, words)[0] if words else np.zeros((0, 12))
            assert_close(vectors, expected, ROUNDING)

    def test_a_folder_with_a_head_is_loaded(self, embedder, tmp_path):
        other = ElmoEmbedder.from_pretrained(str(save_folder(tmp_path / "elmo", ElmoForTokenClassification)))
        assert_close(other.embed_sentence(["Yes"]), embedder.embed_sentence(["Yes"]), ROUNDING)


class TestStreams:
    def test_an_endless_stream_is_read_lazily(self, embedder):
        endless = (["word", str(number)] for number in count())
        assert [len(vectors) for vectors in islice(embedder.embed(endless), 2500)] == [2] * 2500

    def test_nothing_is_read_before_it_is_asked_for(self, embedder):
        read: list[int] = []
        results = embedder.embed(read.append(number) or ["word"] for number in count())
        assert read == []
        next(results)
        assert len(read) <= 1101

    def test_the_order_stays_whatever_the_lengths(self, embedder):
        lengths = [*range(1, 40), *range(40, 0, -1), 700, 0, 3] * 20
        assert [len(vectors) for vectors in embedder.embed(["w"] * length for length in lengths)] == lengths

    def test_a_very_long_sentence_goes_through(self, embedder, exact_embedder):
        words = ["river", "bank", "rose"] * 8000
        short, vectors = exact_embedder.embed([["Yes"], words], layers="top")
        assert vectors.shape == (24_000, 12)
        alone, first, last = exact_embedder.embed([["Yes"], words[:50], words[-50:]], layers="top")
        assert_close(short, alone, EXACT)
        # The forward half knows what stands before a word, the backward half what stands after it.
        assert_close(vectors[:50, :6], first[:, :6], EXACT)
        assert_close(vectors[-50:, 6:], last[:, 6:], EXACT)
        rounded = embedder.embed_sentence(words, layers="top")
        assert_close(rounded[[*range(50), *range(-50, 0)]], vectors[[*range(50), *range(-50, 0)]], PARITY_TOLERANCE)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"layers": "bottom"}, "'bottom' is unknown"),
            ({"layers": 3}, "no layer 3"),
            ({"layers": [0, -4]}, "no layer -4"),
            ({"layers": [0, -3]}, "each layer once"),
            ({"pool": "median"}, "'median' is unknown"),
            ({"return_tensors": "tf"}, "'tf'"),
        ],
    )
    def test_wrong_options_are_named_at_once(self, options, message, embedder):
        with pytest.raises(ValueError, match=message):
            embedder.embed([], **options)

    def test_one_text_is_no_list_of_sentences(self, embedder):
        with pytest.raises(ValueError, match="embed_sentence"):
            embedder.embed("She sat on the bank .")

    def test_a_folder_without_a_model_is_named(self, tmp_path):
        with pytest.raises(ValueError, match=r"no config\.json"):
            ElmoEmbedder.from_pretrained(tmp_path)
        with pytest.raises(ValueError, match="There is no model nowhere"):
            ElmoEmbedder.from_pretrained("nowhere")
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
        with pytest.raises(ValueError, match="'bert', not ELMo"):
            ElmoEmbedder.from_pretrained(tmp_path)


class TestNeighbors:
    SENTENCES = [["the", "bank", "of", "a", "river"], ["a", "bank", "account"], ["the", "bank", "of", "a", "lake"]]

    def test_the_nearest_word_has_the_highest_cosine(self, embedder):
        found = embedder.nearest(self.SENTENCES[0], "bank", self.SENTENCES, top_k=4)
        query, *others = [embedder.embed_sentence(words, layers="top") for words in self.SENTENCES]
        expected = [
            (float(value), sentence, position)
            for sentence, vectors in enumerate(others, start=1)
            for position, value in enumerate(embedder.similarity(query[1], vectors)[0])
        ]
        expected.sort(reverse=True)
        assert [(neighbor.sentence, neighbor.position) for neighbor in found] == [
            (sentence, position) for _, sentence, position in expected[:4]
        ]
        assert_close([neighbor.similarity for neighbor in found], [value for value, *_ in expected[:4]], ROUNDING)
        assert all(neighbor.word == self.SENTENCES[neighbor.sentence][neighbor.position] for neighbor in found)

    def test_only_the_same_word_on_request(self, embedder):
        found = embedder.nearest(self.SENTENCES[0], 1, iter(self.SENTENCES), top_k=9, same_word=True)
        assert {(neighbor.word, neighbor.sentence) for neighbor in found} == {("bank", 1), ("bank", 2)}

    def test_equal_sentences_count_once(self, embedder):
        found = embedder.nearest("a bank", "bank", [["a", "bank"], ["my", "bank"], ["my", "bank"]], same_word=True)
        assert [neighbor.sentence for neighbor in found] == [1]

    def test_similarity_is_the_cosine(self, embedder):
        rows = np.array([[3.0, 4.0], [0.0, 0.0], [-3.0, -4.0]])
        assert_close(embedder.similarity(rows[0], rows), [[1.0, 0.0, -1.0]], ROUNDING)
        assert_close(embedder.similarity(torch.tensor(rows), rows[:1]), [[1.0], [0.0], [-1.0]], ROUNDING)

    def test_occurrences_come_with_their_neighbours(self, embedder):
        found = embedder.occurrences("bank", lambda: self.SENTENCES, top_k=2, most=2)
        assert [(one.sentence, one.position) for one in found] == [(0, 1), (1, 1)]
        for one in found:
            expected = embedder.nearest(one.words, "bank", self.SENTENCES, top_k=2)
            assert [neighbor[1:] for neighbor in one.neighbors] == [neighbor[1:] for neighbor in expected]

    def test_a_word_that_is_not_there_is_named(self, embedder):
        with pytest.raises(ValueError, match="'shore' is not in the sentence"):
            embedder.nearest("a bank", "shore", [])
        with pytest.raises(ValueError, match="'Bank' does not occur, but 'bank' does"):
            embedder.occurrences("Bank", lambda: self.SENTENCES)
        with pytest.raises(ValueError, match="one layer"):
            embedder.nearest("a bank", "bank", [], layers="all")


class TestBatches:
    def test_groups_depend_on_the_stream_alone(self):
        assert list(grouped([1, 5, 2, 2, 9, 1], 3, 6, int)) == [[1, 5], [2, 2], [9], [1]]
        assert list(grouped([1] * 7, 3, 100, int)) == [[1] * 3, [1] * 3, [1]]

    def test_batches_keep_to_the_budget_and_leave_nothing_out(self):
        lengths = [3, 0, 50, 7, 7, 1, 20, 0, 2]
        batches = batches_by_words(lengths, 20)
        assert sorted(chain.from_iterable(batches)) == [0, 2, 3, 4, 5, 6, 8]
        for batch in batches:
            assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 20
        assert batches[0] == [2]

    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"),
        ],
    )
    def test_a_batch_that_is_too_large_is_halved(self, error):
        tried: list[int] = []

        def compute(batch: list[int]) -> int:
            tried.append(len(batch))
            if len(batch) > 3 or 7 in batch:
                raise error
            return sum(batch)

        results = list(computed_in_halves([list(range(10)), [1]], compute))
        assert list(chain.from_iterable(batch for batch, _ in results)) == [*range(10), 1]
        refused = [batch for batch, result in results if isinstance(result, MemoryError)]
        assert refused == [[7]]
        assert tried[:2] == [10, 5]

    def test_other_errors_are_not_swallowed(self):
        with pytest.raises(RuntimeError, match="size"):
            list(computed_in_halves([[1, 2]], lambda batch: torch.ones(2) @ torch.ones(3)))

    def test_memory_that_runs_out_really_is_survived(self):
        resource = pytest.importorskip("resource")
        from tests.embedding_jobs import run_in_child

        def task() -> None:
            large = ElmoEmbedder(varied_model(projection_size=64).double(), ElmoTokenizer(), batch_words=1 << 22)
            calls: list[int] = []
            large.model.register_forward_pre_hook(lambda *call: calls.append(1))
            sentences = list(repeat(["w" * 40, "word", "river"] * 8, 3000))
            expected = large.embed_sentence(sentences[0], layers="all")
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (16 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            for vectors in large.embed(sentences, layers="all"):
                assert_close(vectors, expected, EXACT)
            assert len(calls) > 4

        if not Path("/proc/self/statm").exists():
            leave_out("needs /proc")
        child = run_in_child(task)
        child.join()
        assert child.exitcode == 0


def test_sentence_transformers_pools_the_same_vectors(tmp_path):
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    from sentence_transformers import SentenceTransformer

    folder = str(save_folder(tmp_path / "elmo"))
    transformer = modules.Transformer(folder)
    pooling = modules.Pooling(transformer.get_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[transformer, pooling], device="cpu")
    texts = ["Don't panic.", "", "She sat on the bank of the river ."]
    ours = np.stack(list(ElmoEmbedder.from_pretrained(folder).embed(texts, pool="mean", boundaries=True)))
    assert_close(ours, model.encode(texts), ROUNDING)


def assert_equals_each_alone(embedder: ElmoEmbedder, lines: list[str]) -> None:
    """Asserts that lines embedded together equal each embedded alone; that lines differ, too."""
    norms = []
    for line, vectors in zip(lines, embedder.embed(lines), strict=True):
        alone = embedder.embed_sentence(line)
        assert_close(vectors, alone, EXACT, repr(line[:80]))
        norms.append(float(np.abs(vectors).sum()))
    assert_far(np.array(norms)[:-1], np.array(norms)[1:], 0.01)


def test_many_lines_together_equal_each_alone(exact_embedder):
    assert_equals_each_alone(exact_embedder, corpus_lines(400))


@pytest.mark.long
@pytest.mark.slow
def test_twenty_thousand_lines_of_real_text_equal_each_alone(exact_embedder):
    text = "".join(data_path("wikitext2", name).read_text(encoding="utf-8") for name in ("valid.txt", "test.txt"))
    sentences = [f"{part} ." if part.strip() else part for line in text.split("\n") for part in line.split(" . ")]
    lines = sentences[:19_000] + corpus_lines(1000)
    lines[777] = " ".join(["a", "long", "line"] * 5000)
    assert len(lines) == 20_000
    assert_equals_each_alone(ElmoEmbedder(exact_embedder.model, exact_embedder.tokenizer), lines)
