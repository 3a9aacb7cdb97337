"""Escaping of text in CSV cells, so that a spreadsheet does not run it as a formula."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make Excel, LibreOffice or Google Sheets read a cell as a formula. Source: OWASP, "CSV
Injection"."""

QUOTE = "'"
"""First character that makes a spreadsheet read a cell as text. Spreadsheets do not show it."""


def escaped(text: str) -> str:
    """Make a cell of ``text`` that a spreadsheet shows and does not run."""
    return QUOTE + text if text.startswith(FORMULA) else text


def unescaped(cell: str) -> str:
    """Return the original text of a cell that :func:`escaped` made."""
    return cell[1:] if cell.startswith(tuple(QUOTE + begin for begin in FORMULA)) else cell
