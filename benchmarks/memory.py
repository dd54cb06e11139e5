"""Memory of this process as Linux counts it; every function gives None where there is no /proc."""

from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def read_status(field: str) -> int | None:
    """A field of /proc/self/status that counts memory, in bytes."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(values[0]) * 1024 if values else None


def resident() -> int | None:
    """Bytes in memory now, files that are mapped included."""
    return read_status("VmRSS")


def peak() -> int | None:
    """The most bytes in memory since `reset_peak`, or since the process began."""
    return read_status("VmHWM")


def reset_peak() -> bool:
    """Makes the peak start again at what is in memory now; says whether the kernel allows that."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True
