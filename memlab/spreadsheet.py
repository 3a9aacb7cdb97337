"""Text in cells of a CSV file, which a spreadsheet would run as a formula."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that Excel, LibreOffice or Google Sheets take for a formula. Source: OWASP, "CSV Injection"."""

QUOTE = "'"
"""Before a cell: the rest is text. Spreadsheets do not show it."""


def escaped(text: str) -> str:
    """``text`` as a cell that a spreadsheet shows and does not run."""
    return QUOTE + text if text.startswith(FORMULA) else text


def unescaped(cell: str) -> str:
    """The text of a cell that :func:`escaped` wrote."""
    return cell[1:] if cell.startswith(tuple(QUOTE + begin for begin in FORMULA)) else cell
