"""A gallery on disk: one PNG per picture, and an HTML page that holds them all in one file."""

import base64
import html
import importlib.resources
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vit_jax.atomic import replacing
from vit_jax.explanation.figures.primitives import as_png
from vit_jax.explanation.gallery import OF_AN_IMAGE, OF_THE_MODEL, Exhibit, Gallery, Picture

Pngs = Mapping[str, bytes]  # by the names of the pictures


def write(
    directory: Path, gallery: Gallery, title: str, on_write: Callable[[Path], None] = print
) -> None:
    """Draws and writes one picture after another, then index.html; each path goes to `on_write`."""

    def save(name: str, content: bytes) -> None:
        with replacing(directory / name) as partial:
            partial.write_bytes(content)
        on_write(directory / name)

    def save_figures(figures: Iterable[tuple[str, Figure]], prefix: str = "") -> Pngs:
        pngs = {}
        for name, figure in figures:
            pngs[name] = as_png(figure)
            save(f"{prefix}{name}.png", pngs[name])
        return pngs

    stems = unique_stems([one.name for one in gallery.exhibits])
    of_images = [
        save_figures(gallery.draw_image(index), f"{stem}_") for index, stem in enumerate(stems)
    ]
    page = render(gallery, title, of_images, save_figures(gallery.draw_model()))
    save("index.html", page.encode())


def unique_stems(names: Sequence[str]) -> list[str]:
    """File names without their endings, numbered where two would be the same."""
    stems: list[str] = []
    for name in names:
        stem, number = Path(name).stem, 2
        while stem in stems:
            stem, number = f"{Path(name).stem}-{number}", number + 1
        stems.append(stem)
    return stems


def render(gallery: Gallery, title: str, of_images: Sequence[Pngs], of_model: Pngs) -> str:
    """The page, which needs nothing but a browser."""
    template = importlib.resources.files("vit_jax.explanation").joinpath("page.html")
    return string.Template(template.read_text("utf-8")).substitute(
        title=html.escape(title),
        facts="".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
            for name, value in gallery.facts.items()
        ),
        missing="".join(
            f"<p class=missing>{html.escape(line)}</p>" for line in gallery.missing.values()
        ),
        contents="".join(
            f'<a href="#image{number}">{html.escape(one.name)}</a>'
            for number, one in enumerate(gallery.exhibits)
        ),
        images="".join(map(_section, range(len(of_images)), gallery.exhibits, of_images)),
        model=_figures(of_model, OF_THE_MODEL, "the model"),
    )


def _section(number: int, one: Exhibit, pngs: Pngs) -> str:
    bars = "".join(
        f"<li><span class=bar style='width:{100 * probability:.2f}%'></span>"
        f"<span class=name>{html.escape(name)}</span><span>{probability:.1%}</span></li>"
        for name, probability in one.top
    )
    return (
        f"<section id=image{number}><h2>{html.escape(one.name)}</h2>"
        f"<ol class=top>{bars}</ol>{_figures(pngs, OF_AN_IMAGE, one.name)}</section>"
    )


def _figures(pngs: Pngs, pictures: Mapping[str, Picture], subject: str) -> str:
    return "".join(
        f"<figure><h3>{html.escape(pictures[name].title)}</h3>"
        f'<img loading=lazy alt="{html.escape(f"{pictures[name].title} of {subject}")}"'
        f' src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        f"<figcaption>{html.escape(pictures[name].caption)}</figcaption></figure>"
        for name, png in pngs.items()
    )
