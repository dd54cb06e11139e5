"""What somebody with the package does to publish; run in a process of its own by `test_push.py`.

Arguments: a base folder, a head folder, the repositories for them.
"""

import sys


def main(base: str, head: str, base_repository: str, head_repository: str) -> None:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    from hf_elmo.cli import app

    app(["push", base, base_repository], standalone_mode=False)
    AutoModelForTokenClassification.from_pretrained(head).push_to_hub(head_repository, private=True)
    AutoTokenizer.from_pretrained(head).push_to_hub(head_repository)


if __name__ == "__main__":
    main(*sys.argv[1:])
