"""One HTML file with all pictures in it; it needs nothing but a browser."""

import base64
import html
import importlib.resources
import string
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vit_jax.explanation.pictures import OF_AN_IMAGE, OF_THE_MODEL, Picture


class ImageSection(NamedTuple):
    name: str
    top: Sequence[tuple[str, float]]  # class names and probabilities, the best first
    pngs: Mapping[str, bytes]  # by the names in `pictures.OF_AN_IMAGE`


def render(
    *,
    title: str,
    facts: Mapping[str, str],
    missing: Sequence[str],
    model_pngs: Mapping[str, bytes],
    images: Sequence[ImageSection],
) -> str:
    """`facts` are shown as a list, `missing` are sentences on what the model does not have."""
    template = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
    return string.Template(template).substitute(
        title=html.escape(title),
        facts="".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
            for name, value in facts.items()
        ),
        missing="".join(f"<p class=missing>{html.escape(line)}</p>" for line in missing),
        contents="".join(
            f'<a href="#image{number}">{html.escape(image.name)}</a>'
            for number, image in enumerate(images)
        ),
        images="".join(_section(number, image) for number, image in enumerate(images)),
        model=_figures(model_pngs, OF_THE_MODEL, "the model"),
    )


def _section(number: int, image: ImageSection) -> str:
    bars = "".join(
        f"<li><span class=bar style='width:{100 * probability:.2f}%'></span>"
        f"<span class=name>{html.escape(name)}</span><span>{probability:.1%}</span></li>"
        for name, probability in image.top
    )
    return (
        f"<section id=image{number}><h2>{html.escape(image.name)}</h2>"
        f"<ol class=top>{bars}</ol>{_figures(image.pngs, OF_AN_IMAGE, image.name)}</section>"
    )


def _figures(pngs: Mapping[str, bytes], pictures: Mapping[str, Picture], of: str) -> str:
    return "".join(
        f"<figure><h3>{html.escape(pictures[name].title)}</h3>"
        f'<img loading=lazy alt="{html.escape(f"{pictures[name].title} of {of}")}"'
        f' src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        f"<figcaption>{html.escape(pictures[name].caption)}</figcaption></figure>"
        for name, png in pngs.items()
    )
