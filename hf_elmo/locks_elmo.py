"""Locks that a forked process can take, whatever the threads of its parent were doing when it was forked."""

import os
from threading import Lock


class ProcessLock:
    """A lock among the threads of each process.

    A forked process inherits locks as they are at that moment. Those that another thread of the parent holds would
    never be released in it, because that thread is not there. So each process has its own, which it makes when it
    needs it first.
    """

    def __init__(self) -> None:
        self._locks: dict[int, Lock] = {}

    def of_this_process(self) -> Lock:
        """The lock, to be taken by `with`."""
        return self._locks.setdefault(_forks, Lock())  # at once, so that two threads never make one each


_forks = 0
"""How many forks lie between this process and the one that loaded this file."""


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_count_fork)

__all__ = ["ProcessLock"]
