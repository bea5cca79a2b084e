"""Text that is safe in errors, logs and rows."""

from __future__ import annotations


def shown(value: object) -> str:
    """A value for an error message: its repr, cut to 80 characters, or its type."""
    try:
        text = repr(value)
    except Exception:  # nested too deep, too many digits, or a __repr__ that fails
        return f"{type(value).__qualname__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:77]}..."


def storable(text: str, limit: int) -> str:
    """Make any text storable as ``jsonb`` and harmless in a terminal.

    NUL and other control characters, halves of surrogate pairs, and bidirectional overrides are
    written as escapes; what is over the limit loses its middle.
    """
    # A subclass of str must not cross to another process, nor its methods be called here.
    text = _shortened(str.__str__(text), limit)
    if text.isprintable():
        return text
    escaped = "".join(
        character
        if character in "\n\t" or character.isprintable() or character == "…"
        else f"\\x{ord(character):02x}"
        if ord(character) < 0x100
        else f"\\u{ord(character):04x}"
        for character in text
    )
    return _shortened(escaped, limit)


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2 - 20
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
