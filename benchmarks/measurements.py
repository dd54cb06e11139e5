"""What is measured, each under a name of its own."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bench import ALLENNLP, BFLOAT16, CUDNN, INT8, OURS, SIMPLE_ELMO, Bench, NotMeasured, compare
from gradients import largest_relative_differences
from processes import Worker
from products import KINDS
from sentences import Sentence, batches, count_words, take_words

from hf_elmo import ElmoConfig

BATCH, FEW, TRAINED_WORDS, LONG_BATCH = 32, 4, 20, 8
STORED, FULL = "precomputed", "full forward"
Result = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """A thing to measure.

    Args:
        name: What --only calls it.
        title: What it is, as the tables say it.
        measure: Measures it.
        device: Where it is measured when nothing is chosen.
        goals: Figure -> what the project wants of it.
        limits: Figure -> what the project wants it to stay below.
    """

    name: str
    title: str
    measure: Callable[[Bench], Result]
    device: str = "cpu"
    goals: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)


def read_layers(worker: Worker, sentences: list[Sentence]) -> list[np.ndarray]:
    """All layers of each sentence, (L + 1, words, 2P)."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/layers.npz"
        worker.ask("layers", sentences=sentences, path=path)
        with np.load(path) as arrays:
            return [arrays[f"arr_{index}"] for index in range(len(sentences))]


def layer_differences(workers: dict[str, Worker], sentences: list[Sentence]) -> dict[str, list[float]]:
    """Side -> for each layer the largest absolute difference from the first side over all words."""
    first, *others = workers
    own = read_layers(workers[first], sentences)
    differences = {}
    for side in others:
        pairs = zip(own, read_layers(workers[side], sentences), strict=True)
        differences[side] = np.max([np.abs(a - b).max(axis=(1, 2)) for a, b in pairs], axis=0).tolist()
    return differences


def top_layer_cosines(exact: list[np.ndarray], other: list[np.ndarray]) -> np.ndarray:
    """For every word the cosine of its two vectors of the top layer."""
    a, b = (np.concatenate([layers[-1] for layers in side]).astype(np.float64) for side in (exact, other))
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def measure_float32(bench: Bench) -> Result:
    """Batches of 32 in file order, from words to vectors, and the vectors of all sides compared."""
    workers = bench.workers(OURS, ALLENNLP, SIMPLE_ELMO)
    compared = bench.text.short_lines(BATCH)
    differences = layer_differences(workers, compared)
    result = bench.race(workers, BATCH, bench.workload.batched)
    return {**result, "differences": differences, "compared_words": count_words(compared)}


def measure_one(bench: Bench) -> Result:
    """One sentence at a time."""
    return bench.race(bench.workers(OURS, ALLENNLP, SIMPLE_ELMO), 1, bench.workload.single)


def measure_corpus(bench: Bench) -> Result:
    """A corpus in batches of similar lengths, and its matrix products alone."""
    worker = bench.worker(OURS)
    size, words = bench.workload.corpus_batch, bench.workload.corpus_words
    everything = bench.text.sentences()
    worker.ask("time", sentences=everything[: 2 * size], batch_size=size)
    rest = everything[::-1]  # other sentences than those of the turn that is not timed
    answers, counts = [], []
    for _ in range(bench.workload.repeats):
        part = take_words(rest, words)
        rest = rest[len(part) :]
        answers.append(worker.ask("corpus", sentences=part, batch_size=size))
        counts.append(count_words(part))
    shares = {kind: median(answer["fastest"][kind] / answer["seconds"] for answer in answers) for kind in KINDS}
    return {
        **compare(counts, {OURS: [answer["seconds"] for answer in answers]}),
        "batch_size": size,
        "product_seconds": [answer["products"] for answer in answers],
        "product_shares": shares,
        "product_share": median(sum(answer["fastest"].values()) / answer["seconds"] for answer in answers),
    }


def measure_precision(bench: Bench, side: str) -> Result:
    """A lower precision against AllenNLP in float32, and how far its vectors turn."""
    workers = bench.workers(side, OURS, ALLENNLP)
    compared = [bench.text.short_lines(BATCH, skip=skip) for skip in range(0, bench.workload.batched, BATCH)]
    cosines = np.concatenate(
        [top_layer_cosines(read_layers(workers[OURS], part), read_layers(workers[side], part)) for part in compared]
    )
    return {
        **bench.race(workers, BATCH, bench.workload.batched),
        "cosine": {"mean": float(cosines.mean()), "worst": float(cosines.min()), "words": len(cosines)},
    }


def measure_bfloat16(bench: Bench) -> Result:
    """bfloat16 in batches of 32."""
    return measure_precision(bench, BFLOAT16)


def measure_int8(bench: Bench) -> Result:
    """Dynamic int8 in batches of 32, once `worker_hf_elmo.PRECISIONS` knows it."""
    if "int8" not in bench.worker(OURS).ask("precisions")["precisions"]:
        raise NotMeasured("there is no int8 here: worker_hf_elmo.PRECISIONS has no such entry")
    return measure_precision(bench, INT8)


def measure_training(bench: Bench, size: str, *sides: str) -> Result:
    """A step of full fine-tuning without the optimizer: 32 sentences of 20 words, from words to gradients."""
    present = [side for side in sides if side != ALLENNLP or side in bench.peers]
    workers = {side: bench.worker(side, size, training=True) for side in present}
    stretches = bench.text.stretches(TRAINED_WORDS)
    result: Result = {}
    warm_up = stretches[:BATCH]
    if ALLENNLP in workers:
        result.update(compare_gradients(workers[OURS], workers[ALLENNLP], warm_up, bench.checkpoint(size).converted))
    for side, worker in workers.items():
        if side == CUDNN or ALLENNLP not in workers:
            worker.ask("train", sentences=warm_up)
    seconds: dict[str, list[float]] = {side: [] for side in workers}
    for index in range(bench.workload.repeats):
        sentences = stretches[(index + 1) * BATCH : (index + 2) * BATCH]
        for side in sorted(workers, reverse=bool(index % 2)):
            seconds[side].append(workers[side].ask("train", sentences=sentences)["seconds"])
    words = [BATCH * TRAINED_WORDS] * bench.workload.repeats
    return {**compare(words, seconds), **result, "size": size, "sentences": BATCH, "words_a_sentence": TRAINED_WORDS}


def compare_gradients(ours: Worker, theirs: Worker, sentences: list[Sentence], converted: Path) -> Result:
    """The gradients of the same step on both sides: a batch in float32, and a few sentences in float64.

    A unit of a relu or of a maximum over characters whose inputs differ by no more than rounding may fall on either
    side, and then its gradient differs as a whole. float64 leaves rounding too little room for that.
    """
    config = ElmoConfig.from_pretrained(converted)
    result: Result = {}
    for dtype, some in (("float32", sentences), ("float64", sentences[:FEW])):
        with tempfile.TemporaryDirectory() as folder:
            gradients, losses = [], []
            for name, worker in (("ours", ours), ("theirs", theirs)):
                path = f"{folder}/{name}.npz"
                losses.append(worker.ask("gradients", sentences=some, path=path, dtype=dtype)["loss"])
                with np.load(path) as arrays:
                    gradients.append(dict(arrays))
            own, others = gradients
            differences = largest_relative_differences(own, others, config)
        worst = max(differences, key=lambda name: differences[name])
        result[dtype] = {
            "largest": differences[worst],
            "parameter": worst,
            "median": median(differences.values()),
            "parameters": len(differences),
            "losses": losses,
            "all": differences,
        }
    return {"gradient_differences": result}


def measure_training_step(bench: Bench) -> Result:
    """A training step at the size of the run."""
    return measure_training(bench, bench.workload.size, OURS, ALLENNLP)


def measure_small_training_step(bench: Bench) -> Result:
    """A training step at the small size."""
    return measure_training(bench, bench.workload.small_size, OURS, ALLENNLP)


def measure_precomputed(bench: Bench) -> Result:
    """Training of a tagger on a frozen biLM: an epoch with the full forward, and with layers from the disk."""
    worker, count = bench.worker(OURS), bench.workload.tuned
    options = {"batch_size": BATCH, "epochs": bench.workload.tuned_epochs}
    sentences = bench.text.sentences()[: BATCH + bench.workload.repeats * count]
    worker.ask("fine_tuning", sentences=sentences[:BATCH], **options)
    parts = batches(sentences[BATCH:], count)
    answers = [worker.ask("fine_tuning", sentences=part, **options) for part in parts]
    words = [count_words(part) for part in parts]
    heads: Result = {
        head: compare(words, {way: [answer["seconds"][head][way] for answer in answers] for way in (STORED, FULL)})
        for head in answers[0]["seconds"]
    }
    first, *others = heads
    speeds = {
        f"{what}_words_per_second": median(
            number / answer[what] for number, answer in zip(words, answers, strict=True)
        )
        for what in ("computing", "reading")
    }
    stored = median(answer["bytes"] / number for number, answer in zip(words, answers, strict=True))
    return {
        **heads[first],
        "head": first,
        "heads": {head: heads[head] for head in others},
        **speeds,
        "bytes_a_word": stored,
        **options,
    }


def measure_tokenizer(bench: Bench) -> Result:
    """Words to character ids."""
    repeats = bench.workload.repeats + 2
    lines = [line for line in bench.text.lines if line][: bench.workload.tokenized_lines]
    answer = bench.worker(OURS).ask("tokenizer", lines=lines, repeats=repeats, batch_size=1000)
    speeds = answer["words_per_second"]
    result: Result = {
        "words": count_words(lines),
        "ways": speeds,
        "words_per_second": {OURS: speeds["lists of words"]},
    }
    if ALLENNLP in bench.peers:
        some = lines[: max(1, len(lines) // 10)]
        seconds = [
            bench.worker(ALLENNLP).ask("ids", sentences=some, batch_size=1000)["seconds"] for _ in range(repeats)
        ]
        result["words_per_second"][ALLENNLP] = count_words(some) / median(seconds)
        result["ratios"] = {ALLENNLP: speeds["lists of words"] / result["words_per_second"][ALLENNLP]}
    return result


def measure_loading(bench: Bench) -> Result:
    """Loading in fresh processes: seconds, and memory over the bytes of the weights."""
    result: Result = {"sides": {}}
    for side in (OURS, *(side for side in (ALLENNLP, SIMPLE_ELMO) if side in bench.peers)):
        starts = []
        for _ in range(bench.workload.repeats if side == OURS else 1):
            with bench.new_worker(side, bench.workload.size) as worker:
                starts.append(worker.start)
                if side == OURS:
                    result.update(worker.ask("parameters"))
        result["sides"][side] = summarize_starts(starts, result["bytes"])
    return result


def summarize_starts(starts: list[dict[str, Any]], weight_bytes: int) -> Result:
    """Medians of what sides say of their start."""
    summary: Result = {
        "seconds": median(start["load_seconds"] for start in starts),
        "seconds_with_import": median(start["load_seconds"] + start["import_seconds"] for start in starts),
        "runs": starts,
    }
    memories = [start["memory"] for start in starts if start["memory"]["before"] is not None]
    if memories:
        for moment in ("after", "peak"):
            grown = median(memory[moment] - memory["before"] for memory in memories)
            summary[f"{moment}_bytes"] = grown
            summary[f"{moment}_over_weights"] = grown / weight_bytes
    return summary


def measure_memory(bench: Bench) -> Result:
    """Memory of a forward over 32 sentences, in fresh processes: the first, with what it sets up, and the second."""
    sentences = bench.text.short_lines(BATCH)
    result: Result = {"words": count_words(sentences), "sides": {}}
    for side in (OURS, BFLOAT16, ALLENNLP, SIMPLE_ELMO):
        if side in (ALLENNLP, SIMPLE_ELMO) and side not in bench.peers:
            continue
        with bench.new_worker(side, bench.workload.size) as worker:
            forwards = worker.ask("memory", sentences=sentences, times=2)["forwards"]
        if forwards[0]["before"] is None:
            raise NotMeasured("memory is read from /proc, which this system does not have")
        result["sides"][side] = {
            "first_growth": forwards[0]["peak"] - forwards[0]["before"],
            "second_growth": forwards[1]["peak"] - forwards[1]["before"],
            "in_all": max(forward["peak"] for forward in forwards),
            "forwards": forwards,
        }
    for name, figure in (("ratios_first", "first_growth"), ("ratios_in_all", "in_all")):
        own = result["sides"][OURS][figure]
        result[name] = {side: values[figure] / own for side, values in result["sides"].items() if side != OURS}
    return result


def measure_growth(bench: Bench) -> Result:
    """Time as words, batches and sentences grow; this package alone. Point after point, so that it can be cut."""
    workload, text = bench.workload, bench.text
    rest = text.sentences()
    warm_up = rest[:BATCH]
    # Every point has sentences of its own, the same ones whichever points are measured in a run.
    points: list[tuple[str, dict[str, int], list[Sentence], int]] = []
    for words in workload.growth_words:
        part = take_words(rest, words)
        rest = rest[len(part) :]
        points.append(("words", {"about": words}, part, BATCH))
    for batch_size, count in workload.growth_batches.items():
        points.append(("batches", {"sentences_a_batch": batch_size}, rest[:count], batch_size))
        rest = rest[count:]
    for length, count in workload.growth_lengths.items():
        part = text.stretches(length)[: count * LONG_BATCH]
        points.append(("lengths", {"words_a_sentence": length}, part, LONG_BATCH))

    settings = {"batch_size": BATCH, "long_batch_size": LONG_BATCH}
    result: Result = {part: [] for part, *_ in points} | settings
    for part, labels, sentences, batch_size in points:
        earlier = (point for point in bench.earlier.get(part, []) if labels.items() <= point.items())
        point = next(earlier, None)
        if point is None:
            bench.check_time()
            worker = bench.worker(OURS)
            worker.ask("time", sentences=warm_up, batch_size=BATCH)
            worker.ask("forget")  # so that a point does not depend on those before it
            seconds = worker.ask("time", sentences=sentences, batch_size=batch_size)["seconds"]
            words = count_words(sentences)
            point = {**labels, "words": words, "seconds": seconds, "words_per_second": words / seconds}
        bench.say(f"growth: {labels}: {point['words']:,} words, {point['words_per_second']:,.0f} words/s")
        result[part].append(point)
        bench.keep(result)
    logs = np.log([[point["words"], point["seconds"]] for point in result["words"]])
    return {**result, "exponent": float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])}


def measure_embedding(bench: Bench) -> Result:
    """A corpus in file order into an HDF5 file with all layers: `hf-elmo embed`, and the peers' own batches.

    `allennlp elmo` took 64 sentences at a time in file order; simple_elmo takes 32.
    """
    workers = bench.workers(OURS, ALLENNLP, SIMPLE_ELMO)
    sizes = {OURS: 0, ALLENNLP: 64, SIMPLE_ELMO: 32}
    sentences = take_words(bench.text.sentences(), bench.workload.embedded_words)
    with tempfile.TemporaryDirectory() as folder:
        seconds: dict[str, list[float]] = {}
        for side, worker in workers.items():
            for name, part in (("first", sentences[-FEW:]), (side, sentences)):
                path = f"{folder}/{side}-{name}.hdf5"
                answer = worker.ask("file", sentences=part, batch_size=sizes[side], path=path)
            seconds[side] = [answer["seconds"]]
    return {**compare([count_words(sentences)], seconds), "repeats": 1}


def measure_gpu(bench: Bench, batch_size: int) -> Result:
    """Inference beside AllenNLP's loop and PyTorch's own LSTM, which on a GPU is cuDNN's and does not clip."""
    workers = bench.workers(OURS, CUDNN, ALLENNLP)
    differences = layer_differences(workers, bench.text.short_lines(BATCH))
    workers.update(bench.workers(BFLOAT16))
    sentences, count = bench.text.sentences(), bench.workload.gpu_sentences
    return {**bench.race(workers, batch_size, count, sentences), "differences": differences}


def measure_gpu_training(bench: Bench) -> Result:
    """A training step beside AllenNLP's loop and PyTorch's own LSTM."""
    return measure_training(bench, bench.workload.size, OURS, CUDNN, ALLENNLP)


GPU_GOALS: dict[str, float] = {f"ratios.{ALLENNLP}": 20, f"ratios.{CUDNN}": 1}
MEASUREMENTS = {
    measurement.name: measurement
    for measurement in (
        Measurement(
            "float32",
            "float32, 32 sentences a batch",
            measure_float32,
            goals={f"ratios.{ALLENNLP}": 5.5, f"ratios.{SIMPLE_ELMO}": 2.5},
        ),
        Measurement(
            "one",
            "float32, one sentence at a time",
            measure_one,
            goals={f"ratios.{ALLENNLP}": 8, f"ratios.{SIMPLE_ELMO}": 3},
        ),
        Measurement("corpus", "float32, a corpus in sorted batches", measure_corpus, goals={"product_share": 0.8}),
        Measurement(
            "bfloat16",
            "bfloat16, 32 sentences a batch",
            measure_bfloat16,
            goals={f"ratios.{ALLENNLP}": 10, "cosine.worst": 0.999},
        ),
        Measurement("int8", "int8, 32 sentences a batch", measure_int8),
        Measurement("training", "training step", measure_training_step, goals={f"ratios.{ALLENNLP}": 4}),
        Measurement(
            "training-small", "training step, small size", measure_small_training_step, goals={f"ratios.{ALLENNLP}": 4}
        ),
        Measurement(
            "precomputed",
            "fine-tuning with layers computed once",
            measure_precomputed,
            goals={f"ratios.{FULL}": 10},
        ),
        Measurement(
            "tokenizer", "words to character ids", measure_tokenizer, goals={f"words_per_second.{OURS}": 2_000_000}
        ),
        Measurement(
            "loading",
            "loading",
            measure_loading,
            limits={f"sides.{OURS}.seconds": 1.5, f"sides.{OURS}.peak_over_weights": 1.2},
        ),
        Measurement(
            "memory",
            "memory of a forward, 32 sentences",
            measure_memory,
            goals={f"ratios_first.{ALLENNLP}": 1, f"ratios_in_all.{ALLENNLP}": 1},
        ),
        Measurement("growth", "cost as work grows", measure_growth),
        Measurement("embedding", "float32, a corpus to a file of all layers", measure_embedding),
        Measurement("gpu-32", "GPU, 32 sentences a batch", lambda bench: measure_gpu(bench, 32), "cuda", GPU_GOALS),
        Measurement("gpu-256", "GPU, 256 sentences a batch", lambda bench: measure_gpu(bench, 256), "cuda", GPU_GOALS),
        Measurement("gpu-training", "GPU, training step", measure_gpu_training, "cuda", GPU_GOALS),
    )
}
