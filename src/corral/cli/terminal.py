"""What may reach a terminal.

Names (jobs, tenants, nodes, reasons) are data of other people: in them every character that could move the cursor,
change colours, or reorder text is shown as an escape. Logs keep their colours, line-drawing and erasing of the current
line; every other control sequence (cursor movement, window title, clipboard, device queries, character sets) is
dropped. A pipe or file gets the bytes of a log as they were written.
"""

from __future__ import annotations

import codecs
import re

# C0 and C1 controls, soft hyphen, invisible and direction-changing marks (Unicode TR36, "Trojan Source"), surrogates.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: str) -> str:
    """Return ``text`` with every character that a terminal could obey or hide shown as a backslash escape."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    if character in _SHORT:
        return _SHORT[character]
    point = ord(character)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def safe_json(text: str) -> str:
    """Return JSON that says the same, without characters that a terminal could obey or hide; line ends stay."""
    return _UNSAFE.sub(_json_escaped, text)


def _json_escaped(match: re.Match[str]) -> str:
    character = match.group()
    if character == "\n":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


# A complete control sequence: CSI; OSC, DCS, SOS, PM, APC strings up to BEL or ST; other escapes; 8-bit CSI.
# No string reaches over the beginning of another sequence: a log of beginnings alone would be read again from each.
_SEQUENCE = re.compile(
    r"\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[\]PX^_][^\x07\x1b\x90\x98\x9b-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|[\x90\x98\x9d-\x9f][^\x07\x1b\x90\x98\x9b-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)
# The beginning of one that the next chunk may complete.
_UNFINISHED = re.compile(
    r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x90\x98\x9b-\x9f]*\x1b?|[ -/]*)?"
    r"|\x9b[0-?]*[ -/]*|[\x90\x98\x9d-\x9f][^\x07\x1b\x90\x98\x9b-\x9f]*)\Z"
)
_CONTROL = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]|\x1b")
_UNFINISHED_CHARACTERS_MAX = 4096


class LogFilter:
    """Turns the bytes of a log into text that a terminal can be given, chunk by chunk.

    ``colours`` keeps SGR sequences (colour, bold); erasing within the line (``ESC [ K``), tab, carriage return and
    backspace stay, since progress bars live on them. Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._coloured = False

    def feed(self, data: bytes) -> str:
        """Return what may be shown of the next bytes; an unfinished sequence waits for the rest."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        unfinished = _UNFINISHED.search(text)
        if unfinished and len(unfinished.group()) <= _UNFINISHED_CHARACTERS_MAX:
            text, self._rest = text[: unfinished.start()], unfinished.group()
        return self._shown(text)

    def end(self) -> str:
        """Return what is left at the end, and the sequence that puts colours back when the log had set any."""
        text, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        shown = self._shown(text)
        return shown + "\x1b[0m" if self._coloured else shown

    def _shown(self, text: str) -> str:
        pieces = []
        position = 0
        for match in _SEQUENCE.finditer(text):
            pieces.append(_CONTROL.sub("", text[position : match.start()]))
            pieces.append(self._kept(match))
            position = match.end()
        pieces.append(_CONTROL.sub("", text[position:]))
        return "".join(pieces)

    def _kept(self, match: re.Match[str]) -> str:
        final = match.group("final")
        if final == "m" and self._colours and re.fullmatch(r"[0-9;:]*", match.group("parameters")):
            self._coloured = True
            return match.group()
        return match.group() if final == "K" and match.group("parameters") in {"", "0", "1", "2"} else ""
