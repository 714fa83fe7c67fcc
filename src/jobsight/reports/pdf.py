"""A report as PDF, laid out by typst from the document and its plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import typst

from jobsight.reports.document import Document
from jobsight.reports.plots import Plot

_TEMPLATES: Final = Path(__file__).parent / "templates"


def render_pdf(document: Document, plots: Sequence[Plot] = ()) -> bytes:
    """The document as PDF. Texts are passed as data, so that none of them is typst's markup."""
    data = {
        "document": document,
        "plots": [
            {"name": plot.name, "svg": plot.data.decode(), "wide": plot.is_wide} for plot in plots
        ],
    }
    pdf: bytes = typst.compile(
        str(_TEMPLATES / "report.typ"),
        root=str(_TEMPLATES),
        sys_inputs={"data": msgspec.json.encode(data).decode()},
        ignore_system_fonts=True,
    )
    return pdf
