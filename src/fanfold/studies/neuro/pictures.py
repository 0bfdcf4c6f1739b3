"""Reads folders of images: one for each class, or those of the parts with one for each class in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fanfold.errors import ConfigError, MissingExtra
from fanfold.studies.neuro.images import Array

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
#: What folders of the parts are called.
_PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
#: Images that cannot be read and are named, besides the first.
NAMED = 10
#: What an archive of a Mac has besides.
_BESIDE = "__MACOSX"


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of one part and their labels.  `grey`: none of them has a colour."""

    pixels: Array
    labels: Array
    grey: bool

    def shown(self, grey: bool) -> tuple[Array, Array]:
        return self.pixels[:, :1] if grey else self.pixels, self.labels


@dataclass(frozen=True, eq=False)
class PictureFolder:
    """What a folder holds: images of one size by part, the names of the classes, and what to know of it."""

    parts: dict[str, tuple[Array, Array]]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read(root: Path, size: int) -> PictureFolder:
    """A folder for each class, as torchvision's ImageFolder has it; grey only if every image is."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 4096:
        raise ConfigError(f"size={size!r}: give the side of the images in pixels, a whole number from 1 to 4096")
    if not root.is_dir():
        raise ConfigError(f"there is no folder {root}: give one that holds a folder of images for each class")
    divided = _divided(root)
    train = divided.get("train", root)
    classes = tuple(folder.name for folder in _folders(train))
    if len(classes) < 2:
        inside = [folder for folder in _folders(train) if len(_folders(folder)) > 1]
        remedy = f"; folder:{inside[0]} may be meant" if inside else ""
        raise ConfigError(
            f"{train} must hold a folder of images for each class; {len(classes)} folders are there{remedy}"
        )
    others = [folder for folder in _folders(root) if divided and not (folder in divided.values() and _folders(folder))]
    notes = [f"{folder.name} is left out: it is not a part with folders of classes" for folder in others]
    places = {part: place for part, place in ({"train": train} | divided).items() if _folders(place)}
    parts = {part: _part(place, classes, size) for part, place in places.items()}
    grey = all(part.grey for part in parts.values())
    if len(parts) > 1:
        notes.insert(0, f"its parts are {', '.join(place.name for place in places.values())}")
    return PictureFolder({name: part.shown(grey) for name, part in parts.items()}, classes, tuple(notes))


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != "." and path.name != _BESIDE)


def _divided(root: Path) -> dict[str, Path]:
    """The folders of the parts, if the one to learn from holds folders of classes."""
    roles = {name: part for part, names in _PARTS.items() for name in names}
    named = {folder.name.casefold(): folder for folder in _folders(root)}
    parts = {roles[name]: folder for name, folder in named.items() if name in roles}
    return parts if "train" in parts and len(_folders(parts["train"])) > 1 else {}


def _part(root: Path, classes: Sequence[str], size: int) -> Pictures:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("pillow", "images", f"reading the images in {root}") from error
    if odd := [folder.name for folder in _folders(root) if folder.name not in classes]:
        raise ConfigError(f"{root} has a folder {odd[0]}, and there is none to learn from: add one, or take it out")
    colours, labels, grey = [], [], True
    broken: dict[Path, Exception] = {}
    for label, name in enumerate(classes):
        for path in _images(root / name):
            try:
                with Image.open(path) as image:
                    if image.mode[0] in "IF":  # brighter than 255 would become white
                        raise ValueError(f"it has more than 8 bits a channel (mode {image.mode})")
                    grey = grey and image.mode in ("1", "L", "LA")
                    small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                broken[path] = error
                continue
            colours.append(np.asarray(small, np.uint8))
            labels.append(label)
    if broken:
        (path, why), *others = broken.items()
        some = ", ".join(str(other) for other, _ in others[:NAMED]) + ", ..." * (len(others) > NAMED)
        more = f"Nor can {len(others):,} more: {some}. Take them out" if others else "Take it out"
        raise ConfigError(
            f"{path} cannot be read as an image: {why}. {more}, or convert {'them' if others else 'it'}"
        ) from why
    pixels = np.stack(colours).transpose(0, 3, 1, 2) if colours else np.zeros((0, 3, size, size), np.uint8)
    return Pictures(pixels, np.array(labels, np.int64), grey)


def _images(folder: Path) -> list[Path]:
    """The images in a folder and in those below it; what is hidden is none."""
    if not folder.is_dir():
        return []
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in ENDINGS and path.is_file()]
    return [path for path in paths if not any(name[0] == "." for name in path.relative_to(folder).parts)]
