"""The recipes listed in docs/video.md are the packaged ones."""

import re

from opabinia.config.compose import packaged_names
from opabinia.training.run_folder import resolve
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "video.md").read_text(encoding="utf-8")


def test_all_large_recipes_are_listed() -> None:
    table = TEXT.partition("## Recipes")[2].partition("\n## ")[0]
    listed = set()
    for row in re.findall(r"^\| (`[a-z_]+/.+`) \|", table, re.M):
        first, *variants = (name.strip("` ") for name in row.split(","))
        listed |= {first, *(f"{first.partition('/')[0]}/{name}" for name in variants)} if "/" in first else set()
    large = ("video/kinetics/", "video/something_something/", "video/charades/")
    assert {f"video/{name}" for name in listed} == {name for name in packaged_names() if name.startswith(large)}


def test_own_videos_have_a_recipe_in_color_from_pretrained_weights() -> None:
    config = resolve("video/folder", ["vars.root=mine"]).config
    (clip, crop, _), source = config["data"]["train"]["transforms"], config["data"]["train"]["source"]
    assert (source["root"], source["channels"], crop["size"]) == ("mine/train", 3, 224)
    assert (clip["frames"], clip["sampling"], config["task"]["backbone"]["shift"]) == (8, "uniform", "tsm")
    assert config["task"]["backbone"]["backbone"]["pretrained"] is True
    pages = (TEXT, (ROOT / "README.md").read_text(encoding="utf-8"))
    assert all("opabinia train video/folder vars.root=path/to/videos" in page for page in pages)
