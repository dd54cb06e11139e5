"""Work that one process of a run does for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from transformers import TrainingArguments

Found = TypeVar("Found")


def in_first_process(arguments: TrainingArguments, work: Callable[[], Found]) -> Found:
    """What the first process finds, in every process; an error too reaches them all, so that none waits for ever.

    Args:
        arguments: The arguments of the run, which know its processes.
        work: Called in the first process alone; its result must be such as pickle takes.

    Raises:
        ValueError: What the work raised.
        OSError: What the work raised.
    """
    found: list[Found | ValueError | OSError | None] = [None]
    if arguments.process_index == 0:
        try:
            found = [work()]
        except (ValueError, OSError) as error:
            found = [error]
    if arguments.world_size > 1:
        torch.distributed.broadcast_object_list(found)
    if isinstance(found[0], (ValueError, OSError)):
        raise found[0]
    return cast(Found, found[0])
