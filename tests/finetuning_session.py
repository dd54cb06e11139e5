"""Stock pipelines on folders of fine-tuned heads; run in a process of its own by `test_finetuning_pipelines.py`.

Arguments: "package" to import hf_elmo first, or "remote" where it cannot be imported and only the folders' own code
is there; the folder of a tagger; that of a classifier of pairs; a file with the inputs, which the answers replace.
"""

import json
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

STRATEGIES = ("none", "simple", "first", "average", "max")


class NotInstalled(MetaPathFinder):
    """Makes `import hf_elmo` fail as where it is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "hf_elmo":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def plain(answer: Any) -> Any:
    """Answers of a pipeline with Python's numbers."""
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [plain(value) for value in answer]
    return answer if isinstance(answer, (str, int)) or answer is None else float(answer)


def answers(tagger: str, classifier: str, inputs: dict[str, Any], **loading: Any) -> dict[str, Any]:
    """What the pipelines say of the texts, the words and the pairs in `inputs`."""
    from transformers import pipeline

    found: dict[str, Any] = {}
    for strategy in STRATEGIES:
        tag = pipeline("token-classification", model=tagger, aggregation_strategy=strategy, **loading)
        found[strategy] = [tag(text) for text in inputs["texts"]]
        found[f"{strategy}, in a batch"] = tag(inputs["texts"], batch_size=len(inputs["texts"]))
        found[f"{strategy}, split"] = tag(inputs["words"], is_split_into_words=True)
    classify = pipeline("text-classification", model=classifier, **loading)
    pairs = [{"text": text, "text_pair": pair} for text, pair in inputs["pairs"]]
    found["pairs"] = [classify(pair, top_k=None) for pair in pairs]
    found["pairs, in a batch"] = classify(pairs, batch_size=len(pairs), top_k=None)
    split = [{"text": text.split(), "text_pair": pair.split()} for text, pair in inputs["pairs"]]
    found["pairs, split"] = [classify({**pair, "is_split_into_words": True}, top_k=None) for pair in split]
    found["texts"] = classify(inputs["texts"], top_k=None)
    return plain(found)


def main(mode: str, tagger: str, classifier: str, file: str) -> None:
    inputs = json.loads(Path(file).read_text())
    if mode == "package":
        import hf_elmo  # noqa: F401

        found = answers(tagger, classifier, inputs)
    else:
        sys.meta_path.insert(0, NotInstalled())
        found = answers(tagger, classifier, inputs, trust_remote_code=True)
        found["modules"] = [name for name in sys.modules if name.partition(".")[0] == "hf_elmo"]
    Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
