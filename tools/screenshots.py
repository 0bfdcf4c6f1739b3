"""Pictures of every page of `fanfold view`, for the documentation and to be looked at: `make screenshots`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/web"))

import numpy
import worlds
from browsing import Visitor, chromium, serving
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
#: Names of pictures, and the page, width and colours of each.
PICTURES: dict[str, tuple[str, int, str]] = {
    "runs": ("#/", 1400, "light"),
    "overview": ("#/run/0/prompts", 1400, "light"),
    "page": ("#/run/0/prompts", 1400, "light"),
    "matrix": ("#/run/0/prompts/matrix", 1400, "light"),
    "candidates": ("#/run/0/prompts/trials", 1400, "light"),
    "lineage": ("#/run/0/prompts/lineage", 1400, "light"),
    "work": ("#/run/0/prompts/work", 1400, "light"),
    "failures": ("#/run/0/shaky/failures", 1400, "light"),
    "settings": ("#/run/0/prompts/settings", 1400, "light"),
    "compare": ("#/compare?run=0/functions&run=0/functions-narrow", 1400, "light"),
    "candidate": ("#/run/0/prompts/trial/BEST", 1400, "light"),
    "cell": ("#/run/0/prompts/cell/BEST/0", 1400, "light"),
    "conversation": ("#/run/0/secrets/cell/0/1", 1400, "light"),
    "overview-dark": ("#/run/0/prompts", 1400, "dark"),
    "matrix-dark": ("#/run/0/functions/matrix", 1400, "dark"),
    "overview-phone": ("#/run/0/prompts", 400, "light"),
    "runs-phone": ("#/", 400, "dark"),
    **{
        f"overview-{study}": (f"#/run/0/{study}", 1400, "light")
        for study in ("critic", "secrets", "workflow", "neuro", "ask", "evolve", "functions", "application", "broken")
    },
    **{
        f"{page}-{study}": (f"#/run/0/{study}/{place}", 1400, "light")
        for study in ("critic", "workflow", "neuro", "ask", "evolve")
        for page, place in (("candidate", "trial/BEST"), ("cell", "cell/BEST/0"))
    },
}

#: Leaves folders of this machine out of tracebacks.
SHORTEN = """(folders) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const folder of folders) texts.currentNode.data = texts.currentNode.data.replaceAll(folder, "");
}"""

#: Pictures of the upper part of a page: how many pixels of it.
UPPER = {"page": 900}


def main(folder: Path, names: list[str], ledger: Path | None) -> None:
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        path = (ledger or worlds.made(Path(made) / "worlds")).absolute()
        # In its folder: commands on the pages then name the file alone.
        with contextlib.chdir(path.parent), serving(Path(path.name)) as address, chromium() as browser:
            for width, scheme in sorted({(width, scheme) for _, width, scheme in PICTURES.values()}):
                visitor = Visitor(browser, address, width, scheme)
                for name, (place, *window) in PICTURES.items():
                    if window == [width, scheme] and (not names or name in names):
                        picture(visitor, place, folder / f"{name}.png")
                for error in visitor.errors:
                    print(f"{width} {scheme}: {error}")
                visitor.close()


def picture(visitor: Visitor, place: str, file: Path) -> None:
    """One page as it is when everything is drawn; BEST stands for the best candidate of the run."""
    if "BEST" in place:
        visitor.go(place.split("/trial")[0].split("/cell")[0])
        best = visitor.page.evaluate(
            "async () => (await (await fetch('/api' + location.hash.slice(1))).json()).best?.trial ?? 0"
        )
        place = place.replace("BEST", str(best))
    visitor.go(place)
    visitor.page.wait_for_timeout(400)
    visitor.page.evaluate(SHORTEN, [f"{ROOT}/", f"{Path.cwd()}/"])
    visitor.page.screenshot(path=file, full_page=True)
    shrink(file)
    print(f"{file}: {file.stat().st_size // 1000} kB")


def shrink(file: Path) -> None:
    """Keep 256 colours: the most frequent, so that flat areas stay exact, and rare ones that none of those is near."""
    with Image.open(file) as image:
        full = image.convert("RGB").crop((0, 0, image.width, min(image.height, UPPER.get(file.stem, image.height))))
    frequent = numpy.array([colour for _, colour in sorted(full.getcolors(2**24) or (), reverse=True)], dtype=int)
    kept = list(range(min(64, len(frequent))))
    far = numpy.min([numpy.abs(frequent - frequent[at]).sum(1) for at in kept], axis=0)
    while len(kept) < 256 and far.max() > 0:
        kept.append(int(far.argmax()))
        far = numpy.minimum(far, numpy.abs(frequent - frequent[kept[-1]]).sum(1))
    palette = Image.new("P", (1, 1))
    palette.putpalette(frequent[kept].ravel().tolist())
    full.quantize(palette=palette, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    known = [Path(word) for word in sys.argv[2:] if word.endswith(".db")]
    main(Path(sys.argv[1]), [word for word in sys.argv[2:] if not word.endswith(".db")], known[0] if known else None)
