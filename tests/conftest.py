"""Settings of the whole suite: no network, and no threads that tiny models would only wait for."""

import os
import signal
from collections import Counter

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As under nohup, or behind a shell's `&`: commands that the tests start and interrupt would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was left out for want of something, and how close the conversions are to the originals.

    transformers' checks that do not apply to ELMo are only counted.
    """
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in sorted(reasons.items()):
        if reason.startswith("needs "):
            terminalreporter.write_line(f"LEFT OUT {count} tests: {reason}")
    parity: dict[str, float] = {}
    for report in terminalreporter.stats.get("passed", []):
        for fixture, difference in (value for name, value in report.user_properties if name == "parity"):
            parity[fixture] = max(difference, parity.get(fixture, 0.0))
    for fixture, difference in parity.items():
        terminalreporter.write_line(f"LARGEST DIFFERENCE from the original: {difference:.1e} {fixture}")
