"""Published datasets for semantic segmentation in their usual folders: Cityscapes, ADE20K, Pascal VOC, COCO-Stuff."""

from __future__ import annotations

from typing import Literal

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.segmentation_base import Color
from opabinia.data.sources.segmentation_folder import BrokenMap, SegmentationFiles, segmentation_folder
from opabinia.data.sources.voc import CLASSES as VOC_OBJECTS


@register.source
def cityscapes(
    *,
    root: InputPath,
    split: str = "train",
    annotations: Literal["gtFine", "gtCoarse"] = "gtFine",
    broken: BrokenMap = "error",
    channels: Channels = 3,
) -> SegmentationFiles:
    """Cityscapes (Cordts et al. 2016) as downloaded: the 19 evaluated classes, read from ``*_labelIds.png``; pixels of
    all others are ignored.

    Args:
        root: the folder with ``leftImg8bit`` and the annotations.
        split: folder in both: train, val, or, of the coarse annotations, train_extra.
        annotations: the folder with the maps.
        broken: see ``segmentation_folder``.
        channels: 3 for color, 1 for gray; images are converted.
    """
    return segmentation_folder(
        root=root,
        images=f"leftImg8bit/{split}",
        labels=f"{annotations}/{split}",
        image_suffix="_leftImg8bit.png",
        label_suffix=f"_{annotations}_labelIds.png",
        values={name: [number] for name, (number, _) in _CITYSCAPES.items()},
        colors=[color for _, color in _CITYSCAPES.values()],
        unlisted="ignore",
        broken=broken,
        channels=channels,
    )


@register.source
def ade20k(
    *, root: InputPath, split: Literal["train", "val"] = "train", broken: BrokenMap = "error", channels: Channels = 3
) -> SegmentationFiles:
    """ADE20K of the scene parsing challenge (Zhou et al. 2017): 150 classes; the value 0, other objects, is ignored.

    Args:
        root: the folder with ``images`` and ``annotations``, such as ``ADEChallengeData2016``.
        split: train (the folders ``training``) or val (``validation``).
        broken: see ``segmentation_folder``.
        channels: 3 for color, 1 for gray; images are converted.
    """
    folder = {"train": "training", "val": "validation"}[split]
    return segmentation_folder(
        root=root,
        images=f"images/{folder}",
        labels=f"annotations/{folder}",
        classes=_ADE20K.split(", "),
        reduce_zero_label=True,
        broken=broken,
        channels=channels,
    )


@register.source
def voc_segmentation(
    *,
    root: InputPath,
    split: str = "train",
    labels: str = "SegmentationClass",
    broken: BrokenMap = "error",
    channels: Channels = 3,
) -> SegmentationFiles:
    """Pascal VOC (Everingham et al. 2010): background and 20 classes; the borders of objects (255) are ignored.

    Args:
        root: the folder with ``JPEGImages`` and ``ImageSets``, such as ``VOCdevkit/VOC2012``.
        split: the list in ``ImageSets/Segmentation``: train, val, trainval, or one of your own, such as trainaug.
        labels: the folder with the maps, such as ``SegmentationClassAug`` for the additional ones of SBD.
        broken: see ``segmentation_folder``.
        channels: 3 for color, 1 for gray; images are converted.
    """
    classes = ["background", *VOC_OBJECTS]
    return segmentation_folder(
        root=root,
        images="JPEGImages",
        labels=labels,
        image_suffix=".jpg",
        list_file=f"ImageSets/Segmentation/{split}.txt",
        classes=classes,
        colors=[_voc_color(label) for label in range(len(classes))],
        broken=broken,
        channels=channels,
    )


@register.source
def coco_stuff(
    *,
    root: InputPath,
    split: str = "train2017",
    images: str | None = None,
    labels: str | None = None,
    broken: BrokenMap = "error",
    channels: Channels = 3,
) -> SegmentationFiles:
    """COCO-Stuff 164k (Caesar et al. 2018), the PNG maps ``stuffthingmaps``: 80 classes of objects and 91 of stuff.

    Args:
        root: the folder that holds the folders of images and of maps.
        split: their name, such as train2017.
        images: the folder with images; the split when not given.
        labels: the folder with maps; ``stuffthingmaps`` and the split when not given.
        broken: see ``segmentation_folder``.
        channels: 3 for color, 1 for gray; images are converted.
    """
    # The value of a pixel is the category id - 1; ids 1 to 90 are objects, ten of which never occur, 92 to 182 stuff.
    objects = [number for number in range(90) if number + 1 not in _UNUSED_COCO_IDS]
    numbers = [*objects, *range(91, 182)]
    names = [*_COCO_THINGS.split(", "), *_COCO_STUFF.split(", ")]
    return segmentation_folder(
        root=root,
        images=images or split,
        labels=labels or f"stuffthingmaps/{split}",
        values={name: [number] for name, number in zip(names, numbers, strict=True)},
        broken=broken,
        channels=channels,
    )


# --- classes ----------------------------------------------------------------------------------------------------------

_CITYSCAPES: dict[str, tuple[int, Color]] = {
    "road": (7, (128, 64, 128)),
    "sidewalk": (8, (244, 35, 232)),
    "building": (11, (70, 70, 70)),
    "wall": (12, (102, 102, 156)),
    "fence": (13, (190, 153, 153)),
    "pole": (17, (153, 153, 153)),
    "traffic light": (19, (250, 170, 30)),
    "traffic sign": (20, (220, 220, 0)),
    "vegetation": (21, (107, 142, 35)),
    "terrain": (22, (152, 251, 152)),
    "sky": (23, (70, 130, 180)),
    "person": (24, (220, 20, 60)),
    "rider": (25, (255, 0, 0)),
    "car": (26, (0, 0, 142)),
    "truck": (27, (0, 0, 70)),
    "bus": (28, (0, 60, 100)),
    "train": (31, (0, 80, 100)),
    "motorcycle": (32, (0, 0, 230)),
    "bicycle": (33, (119, 11, 32)),
}
"""Value in ``labelIds`` and color of the classes, in the order of their train ids."""

_ADE20K = (
    "wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk, person, earth, door, "
    "table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea, mirror, rug, field, "
    "armchair, seat, fence, desk, rock, wardrobe, lamp, bathtub, railing, cushion, base, box, column, signboard, "
    "chest of drawers, counter, sand, sink, skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, "
    "case, pool table, pillow, screen door, stairway, river, bridge, bookcase, blind, coffee table, toilet, flower, "
    "book, hill, bench, countertop, stove, palm, kitchen island, computer, swivel chair, boat, bar, arcade machine, "
    "hovel, bus, towel, light, truck, tower, chandelier, awning, streetlight, booth, television receiver, airplane, "
    "dirt track, apparel, pole, land, bannister, escalator, ottoman, bottle, buffet, poster, stage, van, ship, "
    "fountain, conveyer belt, canopy, washer, plaything, swimming pool, stool, barrel, basket, waterfall, tent, bag, "
    "minibike, cradle, oven, ball, food, step, tank, trade name, microwave, pot, animal, bicycle, lake, dishwasher, "
    "screen, blanket, sculpture, hood, sconce, vase, traffic light, tray, ashcan, fan, pier, crt screen, plate, "
    "monitor, bulletin board, shower, radiator, glass, clock, flag"
)

_COCO_THINGS = (
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign, "
    "parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella, "
    "handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, "
    "surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, "
    "broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv, "
    "laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, "
    "scissors, teddy bear, hair drier, toothbrush"
)

_COCO_STUFF = (
    "banner, blanket, branch, bridge, building-other, bush, cabinet, cage, cardboard, carpet, ceiling-other, "
    "ceiling-tile, cloth, clothes, clouds, counter, cupboard, curtain, desk-stuff, dirt, door-stuff, fence, "
    "floor-marble, floor-other, floor-stone, floor-tile, floor-wood, flower, fog, food-other, fruit, furniture-other, "
    "grass, gravel, ground-other, hill, house, leaves, light, mat, metal, mirror-stuff, moss, mountain, mud, napkin, "
    "net, paper, pavement, pillow, plant-other, plastic, platform, playingfield, railing, railroad, river, road, "
    "rock, roof, rug, salad, sand, sea, shelf, sky-other, skyscraper, snow, solid-other, stairs, stone, straw, "
    "structural-other, table, tent, textile-other, towel, tree, vegetable, wall-brick, wall-concrete, wall-other, "
    "wall-panel, wall-stone, wall-tile, wall-wood, water-other, waterdrops, window-blind, window-other, wood"
)

_UNUSED_COCO_IDS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)


def _voc_color(label: int) -> Color:
    """Return the color of a class in VOC's palette: bits 0 and 3 of the label are the highest ones of red."""
    red, green, blue = (sum((label >> 3 * bit + shift & 1) << 7 - bit for bit in range(3)) for shift in range(3))
    return red, green, blue
