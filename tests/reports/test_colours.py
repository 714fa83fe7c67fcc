"""Colours of plots, mails and PDF are those of the pages, and lines stay apart for people with
colour-blindness."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from jobsight.reports import plots

SOURCE = Path(plots.__file__).parents[1]
#: Full protanopia, deuteranopia and tritanopia, by Machado, Oliveira and Fernandes (2009): matrices
#: of linear RGB.
VISIONS = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
#: CIE 1976 distance in CIELAB; some 2.3 can just be noticed side by side.
LEAST_DISTANCE = 20.0
#: Contrast to white that lines of graphics need (WCAG 2.2, 1.4.11).
LEAST_CONTRAST = 3.0
_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def theme(selector: str) -> dict[str, str]:
    """The colours of a rule of the style sheet, by name."""
    sheet = (SOURCE / "web" / "static" / "style.css").read_text()
    match = re.search(rf"^{re.escape(selector)} {{(.*?)^}}", sheet, re.MULTILINE | re.DOTALL)
    assert match is not None
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", match[1]))


def linear(color: str) -> NDArray[np.float64]:
    parts = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def seen(color: str, vision: str) -> NDArray[np.float64]:
    """The colour in CIELAB as somebody sees it."""
    light = np.clip(np.array(VISIONS[vision]) @ linear(color), 0.0, 1.0)
    scaled = _XYZ @ light / _WHITE
    f = np.where(scaled > (6 / 29) ** 3, np.cbrt(scaled), scaled / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_plots_have_the_colours_of_the_pages() -> None:
    light, paper = theme(":root"), theme(":root.on-paper")
    for name in ("ink", "muted", "accent", "second", "bad"):
        assert getattr(plots, name.upper()) == light[name], name
    for name in ("accent", "second", "bad", "line", "grid"):
        assert getattr(plots, name.upper()) == paper[name], name


@pytest.mark.parametrize("file", ["mail.html", "report.typ"])
def test_mails_and_pdf_have_the_colours_of_the_pages(file: str) -> None:
    light = theme(":root")
    text = (SOURCE / "reports" / "templates" / file).read_text()
    tones = {"good": "good", "idle": "muted", "warn": "warn", "bad": "bad", "busy": "accent"}
    tones |= {"info": "accent", "warning": "warn", "critical": "bad"}
    named = {"accent": "accent", "muted": "muted", "ink": "ink"}
    for tone, name in tones.items():
        match = re.search(rf"\b{tone}\"?: (?:\"|rgb\(\")?(#[0-9a-f]{{6}}|[a-z]+)", text)
        assert match is not None, tone
        color = match[1] if match[1].startswith("#") else light[named[match[1]]]
        assert color == light[name], tone
    for name, color in re.findall(r"#let ([a-z]+) = rgb\(\"(#[0-9a-f]{6})\"\)", text):
        assert light[name] == color, name


@pytest.mark.parametrize("vision", VISIONS)
def test_lines_stay_apart(vision: str) -> None:
    for first, second in itertools.combinations(plots.LINE_COLORS, 2):
        distance = float(np.linalg.norm(seen(first, vision) - seen(second, vision)))
        assert distance >= LEAST_DISTANCE, (first, second)


def test_lines_stand_out_from_the_paper() -> None:
    for color in plots.LINE_COLORS:
        luminance = float(_XYZ[1] @ linear(color))
        assert 1.05 / (luminance + 0.05) >= LEAST_CONTRAST, color


def test_the_simulation_sees_what_cannot_be_told_apart() -> None:
    """Red and green of the same lightness are far apart for most people."""
    red, green = "#b35900", "#6b8000"
    apart = {
        vision: float(np.linalg.norm(seen(red, vision) - seen(green, vision))) for vision in VISIONS
    }
    assert apart["normal"] > 2 * LEAST_DISTANCE
    assert min(apart["protanopia"], apart["deuteranopia"]) < LEAST_DISTANCE
