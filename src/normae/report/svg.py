"""Several SVG pictures in one HTML page.

Ids are unique in a file but not in a page: two matplotlib figures both have an `axes_1`, and a clip path of one would
cut the other. So every id of a picture, and every reference to it (`url(#id)`, `href="#id"`), gets the prefix of that
picture; what is only for a file of its own (XML declaration, document type, metadata) is dropped.
"""

import re

from normae.errors import InputError

_REFERENCE = re.compile(r"""(\bid=["']|\burl\(["']?\#|\bhref=["']\#)""")
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_ACTIVE = re.compile(r"<script|<foreignObject|<[a-z][^>]*\son\w+\s*=|javascript:", re.IGNORECASE)
_VIEW_BOX = re.compile(r"""viewBox=["']\s*\S+\s+\S+\s+(\S+)\s+(\S+?)\s*["']""")
_SIZE = re.compile(r"""\s(?:width|height)=["'][^"']*["']""")


def inline_svg(svg: str, prefix: str) -> str:
    """The `<svg>` element of a file's text, with prefixed ids and its size left to the page."""
    start, end = svg.find("<svg"), svg.rfind("</svg>")
    if start < 0 or end < 0:
        raise InputError("expected the text of an SVG file, got none with an <svg> element")
    if _ACTIVE.search(svg):
        raise InputError("expected a plain SVG picture, got one that holds a script")
    body = _METADATA.sub("", svg[start : end + len("</svg>")])
    head, bracket, rest = body.partition(">")
    return _REFERENCE.sub(rf"\g<1>{prefix}-", _SIZE.sub("", head) + bracket + rest)


def aspect_ratio(svg: str) -> float:
    """Width over height by the view box; 1 where there is none."""
    match = _VIEW_BOX.search(svg)
    return float(match[1]) / float(match[2]) if match else 1.0
