"""What an image store holds, as its own index says: images, their names, and the layers below them.

buildah replaces each file of the index as a whole, so they can be read at any time.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ImageIndex", "read_index"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageIndex:
    """``names`` maps names to images, ``layers`` images to their topmost layers, ``parents`` layers to those below."""

    names: Mapping[str, str]
    layers: Mapping[str, str | None]
    parents: Mapping[str, str | None]

    def needed(self, images: Iterable[str]) -> set[str]:
        """These images and all below them: those that they were built on, and the steps between."""
        images = set(images)
        below: set[str] = set()
        for image in images:
            layer = self.layers.get(image)
            while layer is not None and layer not in below:
                below.add(layer)
                layer = self.parents.get(layer)
        return {image for image, layer in self.layers.items() if image in images or layer in below}


def read_index(store: Path, driver: str) -> ImageIndex:
    """The index of a store, which may be empty. ``store`` is what buildah calls the root."""
    images = _records(store / f"{driver}-images" / "images.json")
    layers = _records(store / f"{driver}-layers" / "layers.json")
    return ImageIndex(
        names={name: record["id"] for record in images for name in record.get("names") or ()},
        layers={record["id"]: record.get("layer") or None for record in images},
        parents={record["id"]: record.get("parent") or None for record in layers},
    )


def _records(path: Path) -> list[dict[str, str]]:
    try:
        records: list[dict[str, str]] = json.loads(path.read_bytes())
    except FileNotFoundError:  # buildah has never run
        return []
    return records
