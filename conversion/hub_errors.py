"""What goes wrong between here and the Hub, said in one sentence that tells what to do."""

import json
from collections.abc import Iterator

from huggingface_hub import errors

from .errors import ConversionError

LATER = "The Hub never shows half a push; run the same command again later."
# 408 and 429 ask for patience; 409 and 412 say that somebody else's commit came between.
TRANSIENT = (408, 409, 412, 429, 500, 502, 503, 504)


class PushError(ConversionError):
    """A folder cannot be pushed, or was not."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it was raised from; the client wraps what happens in its threads."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def find_http_error(error: BaseException) -> BaseException | None:
    """The answer of the Hub, or the failure to get one, among the causes of an exception."""
    # The client's HTTP library changed its name between versions; its base class is what the client itself names.
    return next((cause for cause in causes(error) if isinstance(cause, errors.HTTPError)), None)


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status of an answer."""
    return getattr(getattr(error, "response", None), "status_code", None)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may well succeed in a moment."""
    found = find_http_error(error)
    if found is None:
        # An answer that is no JSON comes from a server in trouble, or from something in front of it.
        return any(isinstance(cause, json.JSONDecodeError) for cause in causes(error))
    status = status_of(found)
    return status is None or status in TRANSIENT


def explain(error: BaseException, repo_id: str, endpoint: str) -> PushError:
    """The message for an exception of the client.

    Args:
        error: What was raised.
        repo_id: Where the push was meant to go.
        endpoint: The address of the Hub.
    """
    if any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in causes(error)):
        return PushError("HF_HUB_OFFLINE is set, so that nothing can be pushed; unset it and try again.")
    found = find_http_error(error)
    status = status_of(found)
    if found is None:
        hint = " If it fails again, set HF_HUB_DISABLE_XET=1." if isinstance(error, ConnectionError) else ""
        return PushError(f"The push to {repo_id} failed: {one_line(error)}. {LATER}{hint}")
    if status is None:
        return PushError(f"No connection to {endpoint} ({one_line(found)}). {LATER}")
    said = server_message(found)
    if status == 401:
        return PushError(
            f"The Hub refused the token for {repo_id} (401{said}); log in again with `hf auth login`, or set HF_TOKEN "
            "to a token that may write."
        )
    if status == 403:
        return PushError(
            f"The token may not write to {repo_id} (403{said}); use a token with write access, or a name of your own."
        )
    if status in TRANSIENT:
        return PushError(f"The Hub does not take the push to {repo_id} at the moment ({status}{said}). {LATER}")
    return PushError(f"The Hub refused the push to {repo_id} ({status}{said}).")


def server_message(error: BaseException) -> str:
    """What the server wrote beside the status, behind a colon; empty when it wrote nothing."""
    message = " ".join((getattr(error, "server_message", None) or "").split())
    return f": {message[:300].rstrip('.')}" if message else ""


def one_line(error: BaseException) -> str:
    """An exception's text on one line, without the full stop."""
    text = " ".join(str(error).split()).rstrip(".")
    return text[:300] if text else type(error).__name__
