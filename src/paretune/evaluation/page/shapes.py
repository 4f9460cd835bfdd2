"""How policies are told apart in charts: by a colour (a CSS class) and a shape each, never by colour alone.

The shapes are defined once in the page and drawn by reference, by Python's charts and by the script alike.
"""

from __future__ import annotations

import math

COLOURS = 8


def _star() -> str:
    corners = []
    for k in range(10):
        radius, angle = (1.35 if k % 2 == 0 else 0.58), math.pi * (k / 5 - 0.5)
        corners.append(f"{radius * math.cos(angle):.2f},{radius * math.sin(angle):.2f}")
    return f"M{'L'.join(corners)}z"


SHAPES = (
    "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0z",
    "M-.9,-.9h1.8v1.8h-1.8z",
    "M0,-1.2L1.15,.85H-1.15z",
    "M0,-1.3L1.3,0L0,1.3L-1.3,0z",
    "M0,1.2L1.15,-.85H-1.15z",
    "M-.42,-1.15h.84v.73h.73v.84h-.73v.73h-.84v-.73h-.73v-.84h.73z",
    "M1.15,0L.58,1H-.58L-1.15,0L-.58,-1H.58z",
    _star(),
)
"""Outlines about the origin, of radius 1 or a little more, so that all cover about the same area."""


def colour(index: int) -> str:
    """The CSS class of the policy at this place of the comparison."""
    return f"p{index % COLOURS}"


def shape(index: int) -> int:
    """Its shape; after eight policies colours come again, with another shape."""
    return (index + index // COLOURS) % len(SHAPES)


def definitions() -> str:
    """The shapes, for the top of the page."""
    thin = 'vector-effect="non-scaling-stroke"'  # an attribute: style rules do not reach what is drawn by reference
    paths = "".join(f'<path id="shape-{k}" d="{path}" {thin}/>' for k, path in enumerate(SHAPES))
    return f'<svg class="defs" width="0" height="0" aria-hidden="true"><defs>{paths}</defs></svg>'


def drawn(index: int, x: float, y: float, radius: float, kind: str = "") -> str:
    """A policy's shape at a point of a chart."""
    place = f"translate({x:.1f} {y:.1f}) scale({radius:g})"
    return f'<use href="#shape-{shape(index)}" class="mark {colour(index)} {kind}" transform="{place}"/>'


def icon(index: int) -> str:
    """A policy's shape in running text."""
    return (
        f'<svg class="icon" viewBox="-1.6 -1.6 3.2 3.2" aria-hidden="true">'
        f'<use href="#shape-{shape(index)}" class="mark {colour(index)} full"/></svg>'
    )
