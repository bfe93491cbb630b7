"""Reading an image store's own index of images, names and layers."""

import json
from pathlib import Path

from waypoint.kernel.bases.image_index import read_index


def test_an_unused_store_is_empty(tmp_path: Path) -> None:
    index = read_index(tmp_path, "btrfs")
    assert (index.names, index.layers, index.needed(["any"])) == ({}, {}, set())


def test_an_image_needs_the_images_it_was_built_on(tmp_path: Path) -> None:
    images = [
        {"id": "from", "names": ["from:1"], "layer": "lower"},
        {"id": "step", "names": None, "layer": "lower"},  # from an instruction that changes no file
        {"id": "built", "names": ["built:1", "built:2"], "layer": "upper"},
        {"id": "other", "layer": "beside"},
        {"id": "empty", "layer": ""},
    ]
    layers = [{"id": "lower"}, {"id": "upper", "parent": "lower"}, {"id": "beside", "parent": "lower"}]
    for name, records in (("images", images), ("layers", layers)):
        (tmp_path / f"overlay-{name}").mkdir()
        (tmp_path / f"overlay-{name}" / f"{name}.json").write_text(json.dumps(records))
    index = read_index(tmp_path, "overlay")
    assert index.names == {"from:1": "from", "built:1": "built", "built:2": "built"}
    assert index.layers["empty"] is None
    assert index.needed(["built", "gone"]) == {"from", "step", "built"}
    assert index.needed(["empty"]) == {"empty"}
