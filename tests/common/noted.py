"""Exceptions of the user's code, which multifit raises as they are, with a note of where."""


def with_notes(error: BaseException) -> str:
    """Return an exception's message and its notes, line by line, as a traceback shows them."""
    try:
        message = str(error)
    except Exception:
        message = "<exception str() failed>"
    return "\n".join([message, *getattr(error, "__notes__", [])])
