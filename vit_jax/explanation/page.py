"""A gallery on disk: one PNG per picture, and an HTML page that holds them all in one file."""

import base64
import html
import importlib.resources
import string
from collections.abc import Sequence
from pathlib import Path

from vit_jax.atomic import replacing
from vit_jax.explanation.figures import as_png
from vit_jax.explanation.gallery import PICTURES, Drawn, Gallery

_TOP = 5  # classes


def write(directory: Path, gallery: Gallery, title: str) -> None:
    """Draws and writes one picture after another, then index.html, and prints each path."""
    stems = unique_stems([one.name for one in gallery.exhibits])
    contents = images = ""
    for number, (one, stem) in enumerate(zip(gallery.exhibits, stems, strict=True)):
        figures = _write_figures(directory, gallery.draw_image(number), one.name, f"{stem}_")
        bars = "".join(
            f"<li><span class=bar style='width:{100 * probability:.2f}%'></span>"
            f"<span class=name>{html.escape(name)}</span><span>{probability:.1%}</span></li>"
            for name, probability in sorted(one.probabilities, key=lambda pair: -pair[1])[:_TOP]
        )
        name = html.escape(one.name)
        contents += f'<a href="#image{number}">{name}</a>'
        images += (
            f"<section id=image{number}><h2>{name}</h2><ol class=top>{bars}</ol>{figures}</section>"
        )
    template = importlib.resources.files("vit_jax.explanation").joinpath("page.html")
    page = string.Template(template.read_text("utf-8")).substitute(
        title=html.escape(title),
        facts="".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
            for name, value in gallery.facts.items()
        ),
        missing="".join(
            f"<p class=missing>{html.escape(line)}</p>" for line in gallery.missing.values()
        ),
        contents=contents,
        images=images,
        model=_write_figures(directory, gallery.draw_model(), "the model"),
    )
    _write(directory / "index.html", page.encode())


def unique_stems(names: Sequence[str]) -> list[str]:
    """File names without their endings, numbered where two would be the same."""
    stems: list[str] = []
    for name in names:
        stem, number = Path(name).stem, 2
        while stem in stems:
            stem, number = f"{Path(name).stem}-{number}", number + 1
        stems.append(stem)
    return stems


def _write_figures(directory: Path, drawn: Drawn, subject: str, prefix: str = "") -> str:
    """Writes the figures as files, and returns them as HTML that needs no files."""
    text = ""
    for name, figure in drawn:
        png = as_png(figure)
        _write(directory / f"{prefix}{name}.png", png)
        title, caption = map(html.escape, PICTURES[name])
        text += (
            f'<figure><h3>{title}</h3><img loading=lazy alt="{title} of {html.escape(subject)}"'
            f' src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return text


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as partial:
        partial.write_bytes(content)
    print(path)
