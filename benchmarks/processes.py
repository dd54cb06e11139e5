"""The sides of a comparison as processes, each in its own environment."""

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
LAST_LINES = 15


class Worker:
    """A side that answers requests. See `worker.py` for the other end.

    Args:
        python: The interpreter of its environment.
        script: Its script in this folder.
        log: Where its messages go.
        threads: Threads of its numerical libraries.
        settings: Given to the side.

    Raises:
        RuntimeError: When it cannot start.
    """

    def __init__(self, python: str, script: str, log: Path, threads: int, **settings: Any) -> None:
        self.name, self.log = script, log
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(threads),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        values = {**settings, "threads": threads, "started": time.time()}
        with log.open("w") as messages:
            self.process = subprocess.Popen(
                [python, str(HERE / script), json.dumps(values)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                env=environment,
            )
        self.start = self._read()
        """What the side says of its start: seconds, memory, versions."""

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for the answer.

        Raises:
            RuntimeError: When the side fails.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either, which says more
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it ended without an answer"}
        if "error" in answer:
            self.close()
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            raise RuntimeError(f"{self.name} failed: {answer['error']}. The end of {self.log}:\n{last}")
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
