"""Long texts to read: a file's, or what every Python brings with it."""

from seine_kv.model import InputError, read_text


def load_text(path):
    """(text, its name). Without a path: the Python reference that `help()` shows, from the standard library."""
    if path is not None:
        return read_text(path), path
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise InputError("this Python comes without pydoc_data; give a text with --text") from None
    return "\n\n".join(topics[name] for name in sorted(topics)), "Python's reference (pydoc_data)"
