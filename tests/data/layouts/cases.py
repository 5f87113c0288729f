"""Folders in every layout, and how they are read; broken and ambiguous ones, and their errors."""

from __future__ import annotations

import os

from tests.data.layouts.folders import (
    CAT_SPLITS,
    CATS,
    CORNERS,
    DOTA_LINES,
    MARKET,
    POLYGON,
    Case,
    Wrong,
    coco,
    content,
    cvat_xml,
    idx,
    images,
    labelme_json,
    maps,
    numbered,
    panoptic,
    shards,
    steps,
    text,
    via_json,
    videos,
    voc_xml,
    yolo,
)

TWO = ["1.jpg", "2.jpg"]
SUPERVISELY = {
    "size": {"height": 8, "width": 8},
    "objects": [
        {"classTitle": "Kübel", "geometryType": "rectangle", "points": {"exterior": [[1, 1], [5, 5]], "interior": []}}
    ],
}
SELFSUP = {"task": "selfsup"}
TF = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
KITTI = "0.00 0 -1.58 1 1 5 5 1.5 1.6 3.7 1.8 1.5 8.4 0.01"
TRACKED = (("a", 1), ("a-again", 1), ("b", 2), ("c", 3))
CVAT_VIDEO = (
    "<annotations><meta><task><labels><label><name>dog</name></label></labels></task></meta>"
    '<track id="0" label="dog"><box frame="0" outside="0" xtl="1" ytl="1" xbr="4" ybr="4"/></track></annotations>'
)
VISDRONE = "0,0,3,3,0,0,0,0\n1,1,4,4,1,4,0,0\n2,2,3,3,1,11,0,0,\n"
WIDER = "".join(
    f"{name}\n{count}\n{lines}"
    for name, count, lines in (
        ("0--Parade/1.jpg", 1, "1 1 4 4 0 0 0 0 0 0\n"),
        ("0--Parade/2.jpg", 0, "0 0 0 0 0 0 0 0 0 0\n"),
        ("1--Handshaking/1.jpg", 2, "1 1 4 4 0 0 0 0 0 0 \n0 0 2 2 1 0 0 1 0 0 \n"),
    )
)
HEXAGON = "0 0.1 0.5 0.3 0.1 0.7 0.1 0.9 0.5 0.7 0.9 0.3 0.9\n"
PLACES = ("images/train", "labels/train"), ("images/val", "labels/val")
ROTATED = (
    "<annotation><object><type>robndbox</type><name>ship</name>"
    "<robndbox><cx>4</cx><cy>4</cy><w>4</w><h>2</h><angle>1</angle></robndbox></object></annotation>"
)
YAML = "path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n"

CLASSIFICATION = [
    Case("splits", images(*CAT_SPLITS), "class_folders", "classification", 6, 2, classes=["cat", "dog"]),
    Case("no splits", images(*CATS), "class_folders", "classification", 4),
    Case(
        "other names of splits",
        images("Training/{cat,dog}/1.jpg", "Validate/{cat,dog}/1.jpg", "TESTING/{cat,dog}/{1..2}.jpg"),
        *("class_folders", "classification", 2, 2, 4),
    ),
    Case(
        "train and test only",
        images("train/{cat,dog}/1.jpg", "test/{cat,dog}/{1..2}.jpg"),
        *("class_folders", "classification", 2, None, 4),
    ),
    Case("one level down", images("flowers/{a,b}/1.jpg"), "class_folders", "classification", 2),
    Case("subfolders of classes", images("{a,b}/x/y/1.jpg"), "class_folders", "classification", 2),
    Case(
        "a class without validation images",
        images("train/{a,b,c}/{1..2}.jpg", "val/{a,c}/1.jpg"),
        *("class_folders", "classification", 6, 2),
        classes=["a", "b", "c"],
        notes=["val has no image of b"],
    ),
    Case(
        "an empty folder beside classes",
        steps(images(*CATS), text("notes/readme.md", "x")),
        *("class_folders", "classification", 4),
        classes=["cat", "dog"],
        notes=["they hold no image: notes"],
    ),
    Case(
        "folders below those of groups",
        images("{train,val}/fruit/apple/{fuji,gala}/1.jpg", "{train,val}/{fruit/kiwi,milk}/1.jpg"),
        *("leaf_folders", "classification", 4, 4),
        given={"layout": "leaf_folders"},
        classes=["fruit/apple/fuji", "fruit/apple/gala", "fruit/kiwi", "milk"],
    ),
    Case(
        "a list of names of images that are in folders of their labels",
        steps(
            images("{train,test}/{a,b}/{1..2}.jpg", "train/b/1.jpg"),
            text("train.csv", "filename,class\n1.jpg,a\n2.jpg,b\n"),
            text("test.csv", "filename,class\n1.jpg,a\n2.jpg,b\n"),
        ),
        *("class_folders", "classification", 4, None, 4),
    ),
    Case(
        "a list with a long line of names beside class folders",
        steps(images(*CATS), text("x.csv", f"{','.join(['column'] * 60)}\n" * 3)),
        *("class_folders", "classification", 4),
        notes=["x.csv"],
    ),
    Case(
        "images beside the class folders",
        images(*CATS, "{1..3}.png"),
        *("class_folders", "classification", 4),
        notes=["3 images outside"],
    ),
    Case(
        "longer names of splits",
        images("seg_train/seg_train/{a,b}/{1..2}.jpg", "seg_test/seg_test/{a,b}/1.jpg"),
        *("class_folders", "classification", 4, None, 2),
    ),
    Case("a class called train", images("{bus,car,train}/{1..2}.jpg"), "class_folders", "classification", 6),
    Case("ten digits", images("{0..9}/{1..2}.png"), "class_folders", "classification", 20),
    Case(
        "names with spaces, quotes and unicode",
        images('it\'s a "cat"/ä 1.jpg', "chien 犬: {}#/1.jpg".replace("{}", "[]")),
        *("class_folders", "classification", 2),
    ),
    Case(
        "many folders as classes",
        images("{01..60}/1.jpg"),
        "class_folders",
        "classification",
        60,
        given={"task": "classification"},
    ),
    Case(
        "list",
        steps(
            images("images/{1..4}.jpg"),
            text("labels.csv", "file,kind\n" + "".join(f"{i}.jpg,{'ab'[i % 2]}\n" for i in range(1, 5))),
        ),
        *("list", "classification", 4),
        classes=["a", "b"],
    ),
    Case(
        "class folders with splits by numbers of images",
        steps(
            images("images/a/x{1..3}.jpg", "images/b/y{1..3}.jpg"),
            text("images.txt", "1 a/x1.jpg\n2 a/x2.jpg\n3 a/x3.jpg\n4 b/y1.jpg\n5 b/y2.jpg\n6 b/y3.jpg\n"),
            text("train_test_split.txt", "1 1\n2 0\n3 0\n4 1\n5 0\n6 0\n"),
        ),
        *("class_folders", "classification", 6),
        notes=["lists of images that are not read: images.txt, train_test_split.txt"],
    ),
    Case(
        "lists of splits",
        steps(
            images("{1..4}.jpg"),
            text("train.csv", "path,label\n1.jpg,a\n2.jpg,b\n"),
            text("val.tsv", "path\tlabel\n3.jpg\ta\n"),
            text("test.csv", "path,label\n4.jpg,b\n"),
        ),
        *("list", "classification", 2, 1, 1),
        classes=["a", "b"],
    ),
    Case(
        "list with a split column",
        steps(
            images("{1..4}.jpg"),
            text("all.csv", "path,label,set\n1.jpg,a,train\n2.jpg,b,train\n3.jpg,a,valid\n4.jpg,b,test\n"),
        ),
        *("list", "classification", 2, 1, 1),
    ),
    Case(
        "list with ids in place of paths",
        steps(images("train/{1..4}.jpg"), text("labels.csv", "id,breed\n1,a\n2,b\n3,a\n4,b\n")),
        *("list", "classification", 4),
    ),
    Case(
        "list with several labels",
        steps(images("{1..4}.jpg"), text("a.csv", "path,tags\n1.jpg,red|old\n2.jpg,red\n3.jpg,old\n4.jpg,\n")),
        *("list", "classification", 4),
        classes=["old", "red"],
    ),
    Case(
        "list with a column for each class",
        steps(images("{1..3}.jpg"), text("_classes.csv", "filename,cat,person\n1.jpg,1,0\n2.jpg,1,1\n3.jpg,0,0\n")),
        *("list", "classification", 3),
        classes=["cat", "person"],
    ),
    Case(
        "list with paths of another machine",
        steps(
            images("a/images/{1..4}.jpg"),
            text("labels.csv", "p,label\n" + "".join(f"C:\\x\\images\\{i}.jpg,{i % 2}\n" for i in range(1, 5))),
        ),
        *("list", "classification", 4),
        classes=["0", "1"],
    ),
    Case(
        "lines of JSON",
        steps(
            images("{1..2}.jpg"),
            text("x.jsonl", '{"image": "1.jpg", "label": "a"}\n{"image": "2.jpg", "label": "b"}\n'),
        ),
        *("list", "classification", 2),
    ),
    Case(
        "a single list",
        steps(
            images("{1..2}.jpg"),
            text("x.csv", "path,label\n1.jpg,a\n2.jpg,b\n"),
            text("y.csv", "path,label\n1.jpg,a\n"),
        ),
        "list",
        "classification",
        2,
        file="x.csv",
    ),
    Case(
        "lines of path and label",
        steps(images("my images/{1..3}.jpg"), text("train.txt", "1.jpg 0\n2.jpg 1\n"), text("val.txt", "3.jpg 1\n")),
        *("list", "classification", 2, 1),
        classes=["0", "1"],
    ),
    Case(
        "lists in the folders of splits",
        steps(
            images("{train,val}/{1..2}.jpg"),
            *(
                text(f"{split}/metadata.jsonl", "".join(f'{{"file_name": "{i}.jpg", "label": {i}}}\n' for i in (1, 2)))
                for split in ("train", "val")
            ),
        ),
        *("list", "classification", 2, 2),
    ),
    Case(
        "a list of the class folders",
        steps(
            images(*CATS),
            text("x.csv", "path,label\n" + "".join(f"{c}/{i}.jpg,{c}\n" for c in ("cat", "dog") for i in (1, 2))),
        ),
        *("class_folders", "classification", 4),
    ),
    Case(
        "a list without labels beside class folders",
        steps(images(*CATS), text("x.csv", "path,width\ncat/1.jpg,8.5\ndog/1.jpg,8.25\n")),
        *("class_folders", "classification", 4),
    ),
    Case(
        "tar files",
        lambda make: shards(make, "train-000.tar", "train-001.tar", "val-000.tar"),
        "shards",
        "classification",
        4,
        2,
    ),
    Case("tar files with JSON", lambda make: shards(make, "train/0.tar", label="json"), "shards", "classification", 2),
    Case(
        "list without a line of names, with semicolons",
        steps(images("x/{1..4}.jpg"), text("a.csv", "1.jpg;a\n2.jpg;b\n3.jpg;a\n4.jpg;b\n")),
        *("list", "classification", 4),
        classes=["a", "b"],
    ),
    Case(
        "list of images in several folders, with a column called like a label",
        steps(
            images("part_1/{1..6}.jpg", "part_2/{7..9}.jpg"),
            text(
                "a.csv", "id,dx_label,sex\n" + "".join(f"{i},{'uv'[i % 2]},{'fm'[i % 3 == 0]}\n" for i in range(1, 10))
            ),
        ),
        *("list", "classification", 9),
        classes=["u", "v"],
    ),
    Case(
        "list of Roboflow with spaces, and answers for a competition",
        steps(
            images("{train,test}/{1..3}.jpg"),
            text("train/_classes.csv", "filename, cat, dog\n1.jpg, 1, 0\n2.jpg, 1, 1\n3.jpg, 0, 1\n"),
            text("sample_submission.csv", "id,label\n1.jpg,0\n2.jpg,0\n"),
        ),
        *("list", "classification", 3),
        classes=["cat", "dog"],
        notes=["not read: test/"],
    ),
    Case(
        "class folders with lists of splits",
        steps(
            images("images/{a,b}/{1..3}.jpg"),
            text("meta/trainlist01.txt", "a/1\na/2\nb/1\nb/2\n"),
            text("meta/testlist01.txt", "images/a/3.jpg 1\nimages/b/3.jpg 2\n"),
            text("meta/classes.txt", "a\nb\n"),
        ),
        *("class_folders", "classification", 4, None, 2),
    ),
    Case(
        "class folders with regions of interest",
        steps(
            images("{00000,00001}/{1..2}.ppm"),
            *(
                text(f"0000{c}/GT-0000{c}.csv", f"Filename;Width;Height;X1;Y1;X2;Y2;ClassId\n1.ppm;8;8;1;1;5;5;{c}\n")
                for c in (0, 1)
            ),
        ),
        *("class_folders", "classification", 4),
    ),
    Case(
        "test data with a class of its own, from an archive of macOS",
        images("x/train/{a,b}/{1..2}.jpg", "x/test/{a,b,c}/1.jpg", "__MACOSX/x/train/{a,b}/1.jpg"),
        *("class_folders", "classification", 4, None, 2),
        notes=["c are no classes of the training data"],
    ),
    Case("idx files", lambda make: idx(make, "train", "t10k"), "idx", "classification", 4, None, 4),
]

DETECTION = [
    Case(
        "COCO",
        steps(
            images("{train2017,val2017}/{1..2}.jpg"),
            content("annotations/instances_train2017.json", coco(TWO)),
            content("annotations/instances_val2017.json", coco(TWO)),
        ),
        *("coco", "detection", 2, 2),
        classes=["cat"],
    ),
    Case(
        "COCO with masks and keypoints",
        steps(
            images("train/{1..2}.jpg"),
            content("annotations/instances_train.json", coco(TWO, masks=True)),
            content("annotations/person_keypoints_train.json", coco(TWO, masks=True, keypoints=True)),
        ),
        *("coco", "detection", 2),
        notes=["--task instance_segmentation, --task segmentation, --task keypoints"],
    ),
    Case(
        "names of images that say which split a file is",
        steps(
            images("images/{train,val}/{1..2}.jpg"),
            content("annotations/instances_default.json", coco(["train/1.jpg", "train/2.jpg"])),
            content("annotations/val_instances_default.json", coco(["val/1.jpg", "val/2.jpg"])),
        ),
        *("coco", "detection", 2, 2),
    ),
    Case(
        "keypoints",
        steps(images("{1..2}.jpg"), content("annotations.json", coco(TWO, keypoints=True))),
        *("coco", "keypoints", 2),
        given={"task": "keypoints"},
    ),
    Case(
        "masks",
        steps(images("images/{1..2}.jpg"), content("labels.json", coco(TWO, masks=True))),
        *("coco", "instance_segmentation", 2),
        given={"task": "instance_segmentation"},
    ),
    Case(
        "maps of masks",
        steps(images("images/{1..2}.jpg"), content("labels.json", coco(TWO, masks=True))),
        *("coco", "segmentation", 2),
        given={"task": "segmentation"},
        classes=["background", "cat"],
    ),
    Case(
        "a JSON file in each split",
        steps(
            images("{train,val}/images/{1..2}.jpg"),
            content("train/annotations.json", coco(TWO)),
            content("val/annotations.json", coco(TWO)),
        ),
        *("coco", "detection", 2, 2),
    ),
    Case(
        "a single JSON file",
        steps(images("pictures/{1..2}.jpg"), content("boxes/my.json", coco(TWO))),
        *("coco", "detection", 2),
        file="boxes/my.json",
    ),
    Case(
        "COCO with the same names in each split, one folder down",
        steps(
            images("x/{train,val}/imgs/{1..2}.jpg"),
            content("x/ann/train.json", coco(TWO)),
            content("x/ann/val.json", coco(["imgs\\1.jpg"])),
        ),
        *("coco", "detection", 2, 1),
    ),
    Case(
        "objects of each image in lines of JSON",
        steps(
            images("train/{1..2}.jpg"),
            text(
                "train/metadata.jsonl",
                '{"file_name": "1.jpg", "objects": {"bbox": [[1, 1, 4, 4], [0, 5, 3, 3]], "category": ["a", "b"]}}\n'
                '{"file_name": "2.jpg", "objects": {"bbox": [], "category": []}}\n',
            ),
        ),
        *("boxes", "detection", 2),
        classes=["a", "b"],
    ),
    Case(
        "MOTChallenge with folders of splits",
        steps(
            images("train/{A,B}/img1/{000001..000003}.jpg", "test/C/img1/000001.jpg"),
            *(text(f"train/{name}/gt/gt.txt", f"1,{ord(name)},1,1,4,4,1,1,1\n") for name in "AB"),
        ),
        *("tracks", "detection", 3, 3),
        classes=["pedestrian"],
        notes=["not read: test/"],
    ),
    Case(
        "DOTA in deeper folders",
        steps(images("train/images/P1.png"), text("train/labelTxt-v1.0/labelTxt/P1.txt", DOTA_LINES)),
        *("dota", "detection", 1),
    ),
    Case(
        "data.yaml beside the folder of its path",
        steps(
            lambda make: yolo(make, ("x/images/train", "x/labels/train")),
            text("x.yaml", "path: ../x\ntrain: images/train\nnames: [a, b]\n"),
        ),
        *("yolo", "detection", 2),
        notes=["there is no folder ../x"],
    ),
    Case(
        "list of boxes without names of columns in each split",
        steps(
            images("{train,valid}/{1..2}.jpg"),
            *(text(f"{s}/x.csv", "1.jpg,1,2,6,7,a\n2.jpg,1,2,6,7,b\n") for s in ("train", "valid")),
        ),
        *("boxes", "detection", 2, 2),
    ),
    Case(
        "Roboflow's COCO",
        steps(
            images("{train,valid,test}/{1..2}.jpg"),
            *(content(f"{split}/_annotations.coco.json", coco(TWO)) for split in ("train", "valid", "test")),
        ),
        *("roboflow", "detection", 2, 2, 2),
    ),
    Case(
        "YOLO",
        steps(
            lambda make: yolo(make, ("images/train", "labels/train"), ("images/val", "labels/val")),
            text("data.yaml", YAML),
        ),
        *("yolo", "detection", 2, 2),
        classes=["cat", "dog"],
    ),
    Case(
        "YOLO's polygons",
        steps(
            lambda make: yolo(make, ("images/train", "labels/train"), line=POLYGON),
            text("a.yml", YAML.replace("val: images/val\n", "")),
        ),
        *("yolo", "instance_segmentation", 2),
        given={"task": "instance_segmentation"},
    ),
    Case(
        "oriented boxes of roLabelImg, in folders of splits",
        steps(
            images("{train,val}/{1..2}.jpg"),
            *(text(f"{split}/{number}.xml", ROTATED) for split in ("train", "val") for number in (1, 2)),
        ),
        *("voc", "detection", 2, 2),
        classes=["ship"],
    ),
    Case(
        "YOLO's oriented boxes",
        steps(
            lambda make: yolo(make, ("images/train", "labels/train"), line=CORNERS),
            text("a.yml", YAML.replace("val: images/val\n", "")),
        ),
        *("yolo", "detection", 2),
        given={"task": "detection"},
    ),
    Case(
        "YOLO's polygons of four corners",
        lambda make: yolo(make, ("images", "labels"), line=CORNERS),
        *("yolo_polygons", "instance_segmentation", 2),
        given={"task": "instance_segmentation"},
    ),
    Case(
        "YOLO's polygons with equally many corners",
        lambda make: yolo(make, ("images", "labels"), line=HEXAGON * 5),
        *("yolo", "instance_segmentation", 2),
        given={"task": "instance_segmentation"},
    ),
    Case(
        "YOLO's keypoints",
        steps(
            lambda make: yolo(make, *PLACES, line="1 0.5 0.5 0.5 0.5 0.5 0.5 2 0 0 0\n"),
            text("data.yaml", f"{YAML}kpt_shape: [2, 3]\nflip_idx: [1, 0]\n"),
        ),
        *("yolo", "keypoints", 2, 2),
        classes=["cat", "dog"],
        notes=["--task detection"],
    ),
    Case(
        "boxes of YOLO's keypoints without sides",
        steps(
            lambda make: yolo(make, *PLACES, line="1 0.5 0.5 0.5 0.5 0.5 0.5 0.2 0.2\n"),
            text("data.yaml", f"{YAML}kpt_shape: [2, 2]\n"),
        ),
        *("yolo", "detection", 2, 2),
        given={"task": "detection"},
    ),
    Case(
        "YOLO's keypoints without sides",
        steps(
            lambda make: yolo(make, *PLACES, line="1 0.5 0.5 0.5 0.5 0.5 0.5 0.2 0.2\n"),
            text("data.yaml", f"{YAML}kpt_shape: [2, 2]\n"),
        ),
        *("yolo", "keypoints", 2, 2),
    ),
    Case(
        "Roboflow's YOLO",
        steps(
            lambda make: yolo(make, *((f"{split}/images", f"{split}/labels") for split in ("train", "valid", "test"))),
            text(
                "data.yaml",
                "train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnc: 2\nnames: {0: a, 1: b}",
            ),
        ),
        *("yolo", "detection", 2, 2, 2),
    ),
    Case(
        "YOLO with a path of another machine",
        steps(
            lambda make: yolo(make, ("images/train", "labels/train"), ("images/val", "labels/val")),
            text("data.yaml", YAML.replace("path: .", "path: ../datasets/mine")),
        ),
        *("yolo", "detection", 2, 2),
        notes=["there is no folder ../datasets/mine"],
    ),
    Case(
        "YOLO without data.yaml",
        steps(
            lambda make: yolo(make, ("images/train", "labels/train"), ("images/val", "labels/val")),
            text("classes.txt", "cat\ndog\n"),
        ),
        *("yolo", "detection", 2, 2),
        classes=["cat", "dog"],
    ),
    Case(
        "YOLO without names",
        lambda make: yolo(
            make, ("train/images", "train/labels"), ("val/images", "val/labels"), line="3 0.5 0.5 0.2 0.2"
        ),
        *("yolo", "detection", 2, 2),
        classes=["class_0", "class_1", "class_2", "class_3"],
        notes=["classes.txt"],
    ),
    Case(
        "YOLO with names of classes in any file of Darknet",
        steps(
            lambda make: yolo(make, ("custom/images", "custom/labels")),
            text("coco.names", "cat\ndog\n"),
            text("custom/my.names", "owl\n"),
        ),
        *("yolo", "detection", 2),
        classes=["owl"],
    ),
    Case(
        "YOLO with numbered names of classes next to the label files",
        steps(lambda make: yolo(make, ("pics", "boxes")), text("boxes/labels.txt", "0 cat\n1 dog\n")),
        *("yolo", "detection", 2),
        classes=["cat", "dog"],
    ),
    Case(
        "YOLO in one folder",
        steps(lambda make: yolo(make, ("obj_train_data", "obj_train_data")), text("obj.names", "cat\n")),
        *("yolo", "detection", 2),
    ),
    Case(
        "YOLO beside the images",
        steps(lambda make: yolo(make, (".", ".")), text("classes.txt", "cat\n")),
        "yolo",
        "detection",
        2,
    ),
    Case(
        "data.yaml",
        steps(
            lambda make: yolo(make, ("images/train", "labels/train"), ("images/val", "labels/val")),
            text("data.yaml", YAML),
        ),
        "yolo",
        "detection",
        2,
        2,
        file="data.yaml",
    ),
    Case(
        "Pascal VOC",
        steps(
            images("VOC2007/JPEGImages/{1..3}.jpg"),
            *(text(f"VOC2007/Annotations/{number}.xml", voc_xml()) for number in (1, 2, 3)),
            text("VOC2007/ImageSets/Main/train.txt", "1\n2\n"),
            text("VOC2007/ImageSets/Main/val.txt", "3\n"),
            text("VOC2007/ImageSets/Main/cat_train.txt", "1 1\n2 -1\n"),
        ),
        *("voc", "detection", 2, 1),
    ),
    Case(
        "Supervisely",
        steps(
            images("{train,val}/img/{1..2}.jpg"),
            *(content(f"{place}/ann/{n}.jpg.json", SUPERVISELY) for place in ("train", "val") for n in (1, 2)),
            content("meta.json", {"classes": [{"title": "Kübel", "shape": "rectangle"}]}),
        ),
        *("supervisely", "detection", 2, 2),
        classes=["Kübel"],
    ),
    Case(
        "maps of several datasets of Supervisely",
        steps(
            images("ds{0,1}/img/{1..2}.jpg"),
            *(content(f"{place}/ann/{n}.jpg.json", SUPERVISELY) for place in ("ds0", "ds1") for n in (1, 2)),
        ),
        *("supervisely", "segmentation", 4),
        given={"task": "segmentation"},
    ),
    Case(
        "maps whose values number many objects",
        steps(
            images("{train,test}/images/{1..3}.jpg"),
            numbered("train/masks/{1..3}.png", 45),
            numbered("test/masks/{1..3}.png", 45),
        ),
        *("instance_maps", "instance_segmentation", 3, None, 3),
        notes=["--task detection"],
    ),
    Case(
        "maps whose values number a few objects",
        steps(images("PNGImages/{1..3}.jpg"), numbered("PedMasks/{1..3}_mask.png", 1)),
        *("instance_maps", "detection", 3),
        given={"task": "detection"},
    ),
    Case(
        "Pascal VOC with lists above the usual folder",
        steps(
            images("Images/{1..3}.jpg"),
            *(text(f"Annotations/{number}.xml", voc_xml()) for number in (1, 2, 3)),
            text("ImageSets/train.txt", "1\n2\n"),
            text("ImageSets/test.txt", "3\n"),
        ),
        *("voc", "detection", 2, None, 1),
    ),
    Case(
        "Pascal VOC without lists",
        steps(
            images("images/{1..2}.png"),
            text("annotations/1.xml", voc_xml()),
            text("annotations/2.xml", voc_xml("mine")),
        ),
        *("voc", "detection", 2),
        classes=["cat", "mine"],
    ),
    Case(
        "Pascal VOC beside the images, with splits",
        steps(
            images("{train,valid}/{1..2}.jpg"),
            *(text(f"train/{number}.xml", voc_xml("a")) for number in (1, 2)),
            *(text(f"valid/{number}.xml", voc_xml("b")) for number in (1, 2)),
        ),
        *("voc", "detection", 2, 2),
        classes=["a", "b"],
    ),
    Case(
        "LabelMe",
        steps(images("{1..2}.jpg"), *(content(f"{number}.json", labelme_json(f"{number}.jpg")) for number in (1, 2))),
        *("labelme", "detection", 2),
        notes=["--task instance_segmentation, --task segmentation"],
    ),
    Case(
        "LabelMe with splits",
        steps(
            images("{train,val}/1.jpg"),
            content("train/1.json", labelme_json("1.jpg", "dög")),
            content("val/1.json", labelme_json("1.jpg", "cat")),
        ),
        *("labelme", "segmentation", 1, 1),
        given={"task": "segmentation"},
        classes=["background", "cat", "dög"],
    ),
    Case(
        "Pascal VOC in folders with any names",
        steps(images("pics/{1..2}.jpg"), *(text(f"annots/{number}.xml", voc_xml("a")) for number in (1, 2))),
        *("voc", "detection", 2),
        classes=["a"],
        notes=["no folder ImageSets/Main"],
    ),
    Case(
        "Pascal VOC with splits in folders of both",
        steps(
            images("pics/{train,val}/{1..2}.jpg"),
            *(text(f"boxes/{split}/{number}.xml", voc_xml()) for split in ("train", "val") for number in (1, 2)),
        ),
        *("voc", "detection", 2, 2),
        classes=["cat"],
    ),
    Case(
        "Pascal VOC with a folder for each class",
        steps(
            images("Images/{a,b}/{1..2}.jpg"),
            *(text(f"Annotation/{name}/{number}.xml", voc_xml(name)) for name in ("a", "b") for number in (1, 2)),
        ),
        *("voc", "detection", 4),
        classes=["a", "b"],
    ),
    Case(
        "COCO in a folder with any name",
        steps(images("some/pics/{1..2}.jpg"), content("other/deep/my.json", coco(TWO)), text("other/a.json", "[1]")),
        *("coco", "detection", 2),
    ),
    Case(
        "YOLO in folders with any names",
        steps(lambda make: yolo(make, ("pics", "boxes")), text("boxes/classes.txt", "a\nb\n")),
        *("yolo", "detection", 2),
        classes=["a", "b"],
    ),
    Case(
        "YOLO with splits in folders with any names",
        lambda make: yolo(make, ("train/pics", "train/boxes"), ("val/pics", "val/boxes")),
        *("yolo", "detection", 2, 2),
        classes=["class_0"],
    ),
    Case(
        "data.yaml two folders down",
        steps(
            images("docs/logo.png"),
            lambda make: yolo(make, ("a/b/images/train", "a/b/labels/train"), ("a/b/images/val", "a/b/labels/val")),
            text("a/b/data.yaml", YAML),
        ),
        *("yolo", "detection", 2, 2),
        classes=["cat", "dog"],
    ),
    Case(
        "LabelMe in a second folder",
        steps(
            images("pics/{1..2}.jpg"),
            *(content(f"shapes/{number}.json", labelme_json(f"{number}.jpg")) for number in (1, 2)),
            content("about.json", {}),
        ),
        *("labelme", "detection", 2),
    ),
    Case(
        "CVAT in a folder with any name",
        steps(images("pics/{1..2}.jpg"), text("shapes/mine.xml", cvat_xml(TWO))),
        *("cvat", "detection", 2),
    ),
    Case(
        "VIA",
        steps(
            images("{train,val}/{1..2}.jpg"),
            content("train/via_region_data.json", via_json(TWO)),
            content("train/project.json", {"_via_settings": {}, "_via_img_metadata": via_json(TWO)}),
            content("val/via_region_data.json", via_json(TWO)),
        ),
        *("via", "detection", 2, 2),
        classes=["cat"],
        notes=["--task instance_segmentation"],
    ),
    Case(
        "VIA as CSV, with images in another folder",
        steps(
            images("pics/{1..2}.jpg"),
            text(
                "via.csv",
                "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes\n"
                '1.jpg,1,{},1,0,"{""name"":""rect"",""x"":1,""y"":1,""width"":4,""height"":4}",{}\n2.jpg,1,{},0,0,{},{}\n',
            ),
        ),
        *("via", "instance_segmentation", 2),
        given={"task": "instance_segmentation"},
        classes=["object"],
    ),
    Case(
        "KITTI",
        steps(
            images("training/image_2/{000001..000002}.png", "testing/image_2/000001.png"),
            text("training/label_2/000001.txt", f"Car {KITTI}\nDontCare {KITTI}\n"),
            text("training/label_2/000002.txt", f"Tram {KITTI}\n"),
        ),
        *("kitti", "detection", 2),
        classes=["Car", "Tram"],
        notes=["not read: testing/"],
    ),
    Case(
        "MOTChallenge",
        steps(
            images("{a,a-again,b,c}/img1/{1..2}.jpg"),
            *(text(f"{name}/gt/gt.txt", f"1,1,{side},1,4,4,1,1,1\n") for name, side in TRACKED),
        ),
        *("tracks", "detection", 4, 2),
        classes=["pedestrian"],
        notes=["their tracks are those of others: a-again", "held out for validation: c", "--task reid"],
    ),
    Case(
        "CVAT for video",
        steps(
            images("{a,b}/images/frame_{000000..000002}.png"),
            *(text(f"{name}/annotations.xml", CVAT_VIDEO) for name in ("a", "b")),
        ),
        *("tracks", "detection", 3, 3),
        classes=["dog"],
    ),
    Case(
        "KITTI tracking",
        steps(
            images("training/image_02/{0000,0001}/{000000..000001}.png", "testing/image_02/0002/000000.png"),
            *(text(f"training/label_02/{name}.txt", f"0 1 Car {KITTI}\n") for name in ("0000", "0001")),
        ),
        *("tracks", "detection", 2, 2),
        classes=["Car"],
        notes=["not read: testing/"],
    ),
    Case(
        "VisDrone",
        steps(
            images("drone-{train,val}/images/{1..2}.jpg"),
            *(text(f"drone-{split}/annotations/{i}.txt", VISDRONE) for split in ("train", "val") for i in (1, 2)),
        ),
        *("visdrone", "detection", 2, 2),
    ),
    Case(
        "WIDER FACE",
        steps(
            images("WIDER_{train,val}/images/{0--Parade,1--Handshaking}/{1..2}.jpg"),
            *(text(f"wider_face_split/wider_face_{split}_bbx_gt.txt", WIDER) for split in ("train", "val")),
            text("wider_face_split/wider_face_test_filelist.txt", "0--Parade/1.jpg\n"),
        ),
        *("wider_face", "detection", 3, 3),
        classes=["face"],
    ),
    Case(
        "list of boxes",
        steps(
            images("images/{train,test}/{1..3}.jpg"),
            text("data/train_labels.csv", f"{TF}1.jpg,8,8,cat,1,1,5,5\n1.jpg,8,8,dog,0,0,8,8\n2.jpg,8,8,cat,0,0,4,4\n"),
            text("data/test_labels.csv", f"{TF}3.jpg,8,8,cat,1,1,5,5\n"),
            text("data/all_labels.csv", f"{TF}1.jpg,8,8,cat,1,1,5,5\n"),
        ),
        *("boxes", "detection", 2, None, 1),
        classes=["cat", "dog"],
    ),
    Case(
        "list of boxes without names of columns, with paths of another machine",
        steps(
            images("pics/{1..3}.jpg"),
            text("boxes.csv", "/data/pics/1.jpg,1,2,6,7,a\n/data/pics/2.jpg,,,,,\n/data/pics/1.jpg,0,0,4,4,b\n"),
            text("classes.csv", "a,0\nb,1\n"),
        ),
        *("boxes", "detection", 2),
        classes=["a", "b"],
    ),
    Case(
        "list of boxes with semicolons",
        steps(images("{1..2}.jpg"), text("gt.txt", "1.jpg;3;3;6;7;11\n2.jpg;4;4;8;8;9\n")),
        *("boxes", "detection", 2),
        classes=["9", "11"],
    ),
    Case(
        "list of boxes in fractions",
        steps(
            images("x/train/{a,b}.jpg"),
            text(
                "train-annotations-bbox.csv",
                "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax\na,x,/m/1,1,0.1,0.5,0.2,0.9\nb,x,/m/2,1,0,1,0,1\n",
            ),
        ),
        *("boxes", "detection", 2),
        classes=["/m/1", "/m/2"],
    ),
    Case(
        "list of boxes in one column, without classes",
        steps(
            images("train/{a,b,c}.jpg"),
            text(
                "train.csv", 'image_id,width,height,bbox,source\na,8,8,"[4.0, 4.0, 4, 3]",x\nb,8,8,"[0, 5, 3, 3]",y\n'
            ),
        ),
        *("boxes", "detection", 2),
        classes=["object"],
        notes=["no column has classes (width, height, source)"],
    ),
    Case(
        "list of boxes with a split column",
        steps(
            images("{1..3}.jpg"),
            text(
                "a.csv",
                "path,kind_of_class,x,y,w,h,set\n1.jpg,a,1,1,2,2,train\n2.jpg,b,1,1,2,2,train\n3.jpg,a,1,1,2,2,val\n",
            ),
        ),
        *("boxes", "detection", 2, 1),
        classes=["a", "b"],
    ),
    Case("CVAT", steps(images("images/{1..2}.jpg"), text("annotations.xml", cvat_xml(TWO))), "cvat", "detection", 2),
    Case(
        "CVAT with splits",
        steps(images("{train,val}/{1..2}.jpg"), text("train.xml", cvat_xml(TWO)), text("val.xml", cvat_xml(TWO))),
        *("cvat", "instance_segmentation", 2, 2),
        given={"task": "instance_segmentation"},
    ),
    Case(
        "DOTA",
        steps(
            images("{train,val}/images/P1.png"),
            text("train/labelTxt/P1.txt", DOTA_LINES),
            text("val/labelTxt/P1.txt", DOTA_LINES.replace("plane", "ship")),
        ),
        *("dota", "detection", 1, 1),
        classes=["plane", "ship"],
    ),
]

SEGMENTATION = [
    Case(
        "maps in splits",
        steps(
            images("{train,val}/images/{1..2}.jpg"),
            maps("{train,val}/labels/{1..2}.png"),
            text("classes.txt", "a\nb\nc\n"),
        ),
        *("maps", "segmentation", 2, 2),
        classes=["a", "b", "c"],
    ),
    Case(
        "maps in splits without names of classes",
        steps(images("{train,val}/images/{1..2}.jpg"), maps("{train,val}/labels/{1..2}.png")),
        *("maps", "segmentation", 2, 2),
        classes=["class_0", "class_1", "class_2"],
        notes=["classes.txt"],
    ),
    Case(
        "splits in folders of images and maps",
        steps(images("images/{training,validation}/{1..2}.jpg"), maps("annotations/{training,validation}/{1..2}.png")),
        *("maps", "segmentation", 2, 2),
        classes=["class_0", "class_1", "class_2"],
        notes=["classes.txt"],
    ),
    Case(
        "masks of objects with class and number in their names, in pairs of folders",
        steps(
            images("{train,val}/shapes/{1..2}.jpg"),
            maps("{train,val}/annotations/{1_cat_0,1_cat_1,1_traffic light_2,2_cat_0}.png", values=(0, 255)),
        ),
        *("mask_files", "instance_segmentation", 2, 2),
        classes=["cat", "traffic light"],
        notes=["--task detection, --task segmentation"],
    ),
    Case(
        "masks of objects in folders of splits, for segmentation",
        steps(
            images("images/{train,val}/{a,a_1,b}.jpg"),
            maps("masks/{train,val}/{a_0,a_1_0,a_1_1,a_1_2,b_0,b_1}.png", values=(0, 1)),
        ),
        *("mask_files", "segmentation", 3, 3),
        given={"task": "segmentation"},
        classes=["background", "object"],
    ),
    Case(
        "masks of objects in a folder for each image name",
        steps(images("images/{a,b,c}.jpg"), maps("masks/{a/0,a/0aef3c12-aef0,b/0}.png", values=(0, 255))),
        *("mask_files", "detection", 3),
        given={"task": "detection"},
        classes=["object"],
    ),
    Case(
        "a folder for each image, with masks of its objects",
        steps(
            images("stage1_{train,test}/{a,b,c}/images/1.png"),
            maps("stage1_train/{a,b,c}/masks/{4,5,0aef3c12}.png", values=(0, 255)),
        ),
        *("mask_files", "instance_segmentation", 3),
        classes=["object"],
        notes=["not read: stage1_test/"],
    ),
    Case(
        "several masks of few images, read as maps",
        steps(images("images/{1..5}.jpg"), maps("masks/{1,2,3,4,5,5_1}.png", values=(0, 255))),
        *("maps", "segmentation", 5),
        given={"layout": "maps"},
    ),
    Case(
        "maps next to images made from them",
        steps(
            images("images/{1..2}.jpg"),
            maps("labels/{1..2}_labels.png"),
            maps("labels/{1..2}_overlay.png", values=(0, 0, 9, 9, 0, 0), mode="RGB"),
        ),
        *("maps", "segmentation", 2),
        notes=["not read: 2 files next to the maps, since an image has one map", "labels/1_overlay.png"],
    ),
    Case(
        "maps with a suffix",
        steps(images("imgs/a/{1..2}.jpg"), maps("masks/a/{1..2}_mask.png", values=(0, 255))),
        *("maps", "segmentation", 2),
        classes=["background", "object"],
    ),
    Case(
        "names with beginnings",
        steps(images("img/img_{01..03}.png"), maps("gt/label_{01..03}.tif", values=(0, 1))),
        *("maps", "segmentation", 3),
        classes=["background", "object"],
    ),
    Case(
        "maps beside images",
        steps(
            images("{train,val}/{1..2}.png"),
            maps("{train,val}/{1..2}_mask.png"),
            text("train/_classes.csv", "Pixel Value, Class\n0, sky\n1, road\n2, car\n"),
        ),
        *("maps", "segmentation", 2, 2),
        classes=["sky", "road", "car"],
    ),
    Case(
        "maps beside images of another suffix, in shades of gray",
        steps(
            maps("{a,b}/{1..2}.bmp", values=tuple(range(64))),
            maps("{a,b}/{1..2}.png", values=(0,) * 32 + (128,) * 16 + (255,) * 16),
            text("a.csv", "id,class\n1,2\n"),
        ),
        *("maps", "segmentation", 4),
        classes=["class_0", "class_1", "class_2"],
        notes=["not read: a.csv"],
    ),
    Case(
        "folders of maps beside folders of splits",
        steps(images("{train,val}/{1..2}.jpg"), maps("{train,val}_masks/{1..2}_mask.png")),
        *("maps", "segmentation", 2, 2),
    ),
    Case(
        "folders of maps whose names end with annot",
        steps(
            images("{train,val,test}/{1..2}.png"),
            maps("{train,val,test}annot/{1..2}.png"),
            text("train.txt", "/other/train/1.png /other/trainannot/1.png\n"),
        ),
        *("maps", "segmentation", 2, 2, 2),
    ),
    Case(
        "folders of images and maps of splits, beside other folders of images",
        steps(
            images("docs/{a,b}.png"),
            maps("data/images_prepped_{train,test}/{1..2}.png", values=tuple(range(64))),
            maps("data/annotations_prepped_{train,test}/{1..2}.png"),
        ),
        *("maps", "segmentation", 2, None, 2),
    ),
    Case(
        "a folder of images and maps for each scene",
        steps(images("{a,b}/img/{1..2}.jpg"), maps("{a,b}/gt/{1..2}.png")),
        *("maps", "segmentation", 4),
    ),
    Case(
        "folders of both below splits",
        steps(images("{Train,Val}/{a,b}/images_png/{1..2}.jpg"), maps("{Train,Val}/{a,b}/masks_png/{1..2}.png")),
        *("maps", "segmentation", 4, 4),
    ),
    Case(
        "maps beside images in several folders",
        steps(images("{a,b}/a ({1..3}).png"), maps("{a,b}/a ({1..3})_mask.png", values=(0, 255))),
        *("maps", "segmentation", 6),
        classes=["background", "object"],
    ),
    Case(
        "maps by hand beside other masks",
        steps(
            images("images/{21..24}_training.tif"),
            maps("mask/{21..24}_training_mask.gif", values=(0, 255)),
            maps("1st_manual/{21..24}_manual1.gif", values=(0, 1)),
        ),
        *("maps", "segmentation", 4),
    ),
    Case(
        "maps with one end beside images",
        steps(images("{1..9}.jpg"), maps("{1..9}_L.png")),
        *("maps", "segmentation", 9),
    ),
    Case(
        "three folders with any names",
        steps(images("a/{1..4}.jpg", "c/{5..6}.jpg"), maps("b/{1..4}.png")),
        *("maps", "segmentation", 4),
        notes=["not read: c/"],
    ),
    Case(
        "maps with other ends beside images",
        steps(images("train/{1..3}_sat.jpg"), maps("train/{1..3}_mask.png", values=(0, 255))),
        *("maps", "segmentation", 3),
    ),
    Case(
        "maps with the same names beside images",
        steps(images("{1..3}.jpg"), maps("{1..3}.png")),
        *("maps", "segmentation", 3),
    ),
    Case(
        "maps two levels down, and a list for validation only",
        steps(
            images("images/{1..3}.jpg"),
            maps("annotations/trimaps/{1..3}.png", values=(1, 2, 3)),
            text("valid.txt", "3\n"),
        ),
        *("maps", "segmentation", 3),
        classes=["class_0", "class_1", "class_2", "class_3"],
        notes=["valid.txt"],
    ),
    Case(
        "folders with any names",
        steps(images("a/{1..2}.jpg"), maps("b/{1..2}.png")),
        *("maps", "segmentation", 2),
    ),
    Case(
        "maps that are JPEG",
        steps(images("images/{1..2}.png"), maps("masks/{1..2}.jpg", values=(0,) * 32 + (255,) * 32)),
        *("maps", "segmentation", 2),
        classes=["background", "object"],
        notes=["maps are JPEG: pixels get the class of the nearest of the values 0, 255"],
    ),
    Case(
        "maps in color that are JPEG",
        steps(
            images("images/{1..2}.png"),
            maps("masks/1.jpg", values=(0, 0, 0), mode="RGB"),
            maps("masks/2.jpg", values=(255, 0, 0), mode="RGB"),
            text("class_dict.csv", "name,r,g,b\nbackground,0,0,0\ncar,255,0,0\n"),
        ),
        *("maps", "segmentation", 2),
        classes=["background", "car"],
        notes=["maps are JPEG"],
    ),
    Case(
        "maps that were interpolated",
        steps(
            images("images/{1..8}.png"),
            *(
                maps(f"masks/{i}.png", values=(0,) * 29 + tuple(range(25 * i, 25 * i + 24, 4)) + (255,) * 29)
                for i in range(1, 9)
            ),
        ),
        *("maps", "segmentation", 8),
        classes=["background", "object"],
        notes=["different values: pixels get the class of the nearest of the values 0, 255"],
    ),
    Case(
        "maps with all shades between two values",
        steps(
            images("images/{1..43}.png"),
            *(
                maps(f"masks/{i}.png", values=(0,) * 29 + tuple(range(6 * i - 6, min(6 * i, 256))) + (255,) * 29)
                for i in range(1, 44)
            ),
        ),
        *("maps", "segmentation", 43),
        classes=["background", "object"],
        notes=["256 different values: pixels get the class of the nearest of the values 0, 255"],
    ),
    Case(
        "black and white maps in color",
        steps(images("images/{1..2}.png"), maps("masks/{1..2}.png", values=(0, 0, 0, 255, 255, 255), mode="RGB")),
        *("maps", "segmentation", 2),
        classes=["background", "object"],
    ),
    Case(
        "maps in color",
        steps(
            images("images/{1..2}.jpg"),
            maps("labels/{1..2}.png", values=(0, 0, 0, 9, 8, 7), mode="RGB"),
            text("label_colors.txt", "void 0 0 0\nroad 9 8 7\ncar 1 2 3\n"),
        ),
        *("maps", "segmentation", 2),
        classes=["void", "road", "car"],
    ),
    Case(
        "maps in color with names after the colors",
        steps(
            images("images/{1..2}.jpg"),
            maps("labels/{1..2}.png", values=(0, 0, 0, 9, 8, 7), mode="RGB"),
            text("label_colors.txt", "0 0 0\tVoid\n9 8 7\t\tRoad 2\n"),
        ),
        *("maps", "segmentation", 2),
        classes=["Void", "Road 2"],
    ),
    Case(
        "maps in color with colors in one column",
        steps(
            images("images/{1..2}.jpg"),
            maps("labels/{1..2}.png", values=(0, 0, 0, 9, 8, 7), mode="RGB"),
            text("Labels and colors.csv", 'Label,color_rgb\nVoid,"0,0,0"\nRoad 2,"9,8,7"\n'),
        ),
        *("maps", "segmentation", 2),
        classes=["Void", "Road 2"],
    ),
    Case(
        "maps in color without names",
        steps(images("images/{1..2}.jpg"), maps("masks/{1..2}.png", values=(0, 0, 0, 9, 8, 7), mode="RGB")),
        *("maps", "segmentation", 2),
        classes=["class_0", "class_1"],
    ),
    Case(
        "maps with a palette and gaps",
        steps(images("images/{1..2}.jpg"), maps("masks/{1..2}.png", values=(0, 100, 200), mode="P")),
        *("maps", "segmentation", 2),
        classes=["class_0", "class_1", "class_2"],
    ),
    Case(
        "lists of names",
        steps(
            images("images/{1..3}.jpg"), maps("labels/{1..3}.png"), text("train.txt", "1\n2\n"), text("val.txt", "3\n")
        ),
        *("maps", "segmentation", 2, 1),
    ),
    Case(
        "lists of names with suffix",
        steps(
            images("images/{1..3}.jpg"),
            maps("labels/{1..3}.png"),
            text("train.txt", "1.jpg\n2.jpg\n"),
            text("val.txt", "3.jpg\n"),
        ),
        *("maps", "segmentation", 2, 1),
    ),
    Case(
        "a list of pairs",
        steps(
            images("x/{1..2}.jpg"),
            maps("y/m{1..2}.png"),
            text("train.txt", "x/1.jpg y/m1.png\n"),
            text("val.txt", "x/2.jpg y/m2.png\n"),
        ),
        *("map_list", "segmentation", 1, 1),
    ),
    Case(
        "Cityscapes",
        steps(
            images("leftImg8bit/{train,val}/bonn/{1..2}_leftImg8bit.png"),
            maps("gtFine/{train,val}/bonn/{1..2}_gtFine_labelIds.png", values=(7, 26)),
        ),
        *("cityscapes", "segmentation", 2, 2),
    ),
    Case(
        "COCO-Stuff",
        steps(images("{train,val}2017/{1..2}.jpg"), maps("stuffthingmaps/{train,val}2017/{1..2}.png")),
        *("coco_stuff", "segmentation", 2, 2),
    ),
    Case(
        "ADE20K",
        steps(
            images("ADE/images/{training,validation}/{1..2}.jpg"),
            maps("ADE/annotations/{training,validation}/{1..2}.png"),
            text("ADE/objectInfo150.txt", "Idx Ratio"),
        ),
        *("ade20k", "segmentation", 2, 2),
    ),
    Case(
        "maps of Pascal VOC",
        steps(
            images("JPEGImages/{1..3}.jpg"),
            maps("SegmentationClass/{1..3}.png", values=(0, 20, 255), mode="P"),
            text("ImageSets/Segmentation/train.txt", "1\n2\n"),
            text("ImageSets/Segmentation/val.txt", "3\n"),
        ),
        *("voc_segmentation", "segmentation", 2, 1),
    ),
    Case(
        "maps of CVAT",
        steps(
            images("JPEGImages/{1..2}.jpg"),
            maps("SegmentationClass/{1..2}.png", values=(0, 0, 0, 250, 50, 83), mode="RGB"),
            text("ImageSets/Segmentation/default.txt", "1\n2\n"),
            text("labelmap.txt", "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:250,50,83::\n"),
        ),
        *("maps", "segmentation", 2),
        classes=["background", "cat"],
    ),
    Case(
        "panoptic",
        steps(
            images("{train,val}/{1..2}.jpg"),
            maps("panoptic_{train,val}/{1..2}.png", values=(1, 0, 0), mode="RGB"),
            content("annotations/panoptic_train.json", panoptic(TWO)),
            content("annotations/panoptic_val.json", panoptic(TWO)),
        ),
        *("coco_panoptic", "panoptic", 2, 2),
        notes=["--task segmentation"],
    ),
]

OTHERS = [
    Case("Market-1501", images(*MARKET), "market1501", "reid", 4, None, 8),
    Case(
        "VeRi",
        images("{image_train,image_query,image_test}/{0001,0002}_c00{1,2}_00016450_0.jpg"),
        "veri",
        "reid",
        4,
        None,
        8,
    ),
    Case(
        "folders of queries and a gallery",
        images("train/{0001,0002}/{1..2}.jpg", "query/0003/1.jpg", "gallery/{0003,0004}/2.jpg"),
        *("gallery_folders", "reid", 4, None, 3),
    ),
    Case(
        "folders of queries and a gallery with names of cameras",
        images("train/{0001,0002}_c{1,2}_1.jpg", "query/0003_c1_1.jpg", "gallery/0003_c2_1.jpg"),
        *("gallery_folders", "reid", 4, None, 2),
    ),
    Case(
        "folders of identities", images("{01..60}/{1..2}.jpg"), "identity_folders", "reid", 120, given={"task": "reid"}
    ),
    Case("classes as identities", images(*CAT_SPLITS), "class_folders", "reid", 6, given={"task": "reid"}),
    Case(
        "identities of other names in val",
        images("train/{a,b}/{1..2}.jpg", "val/{c,d}/{1..2}.jpg"),
        "identity_folders",
        "reid",
        4,
        4,
        given={"task": "reid"},
    ),
    Case(
        "list of identities",
        steps(images("{1..4}.jpg"), text("x.csv", "file,pid,cam\n1.jpg,a,0\n2.jpg,a,1\n3.jpg,b,0\n4.jpg,b,1\n")),
        *("identity_list", "reid", 4),
    ),
    Case(
        "list of identities with splits",
        steps(
            images("{1..4}.jpg"),
            text("x.csv", "path,identity,split\n1.jpg,a,train\n2.jpg,b,train\n3.jpg,c,test\n4.jpg,c,test\n"),
        ),
        *("identity_list", "reid", 2, None, 2),
    ),
    Case(
        "videos in splits",
        lambda make: videos(make, "train/{run,jump}/{1..3}.mp4", "val/{run,jump}/1.MP4"),
        "video_folders",
        "video",
        6,
        2,
    ),
    Case("videos without splits", lambda make: videos(make, "{run,jump}/{1..3}.avi"), "video_folders", "video", 6),
    Case(
        "lists of videos",
        lambda make: steps(
            lambda m: videos(m, "videos/{1..3}.mp4"),
            text("train.txt", "1.mp4 0\n2.mp4 1\n"),
            text("val.txt", "3.mp4 1\n"),
        )(make),
        *("video_list", "video", 2, 1),
    ),
    Case(
        "folders of frames",
        steps(images("{a,b}/{1..3}.jpg"), text("train.txt", "a 3 0\nb 3 1\n")),
        *("video_list", "video", 2),
    ),
    Case(
        "lists of videos with names of columns",
        lambda make: steps(
            lambda m: videos(m, "train/{1..3}.avi", "test/4.avi"),
            text("train.csv", "video_name,tag\n1.avi,run\n2.avi,jump\n3.avi,run\n"),
            text("test.csv", "video_name,tag\n4.avi,run\n"),
        )(make),
        *("video_list", "video", 3, None, 1),
        classes=["jump", "run"],
    ),
    Case(
        "lists of videos with spaces",
        lambda make: steps(
            lambda m: videos(m, "clips/{1..3}.mp4"), text("train.csv", "clips/1.mp4 0\nclips/2.mp4 2\n")
        )(make),
        *("video_list", "video", 2),
        classes=["0", "1", "2"],
    ),
    Case(
        "folders of frames with names of classes",
        steps(
            images("x/{1..3}/{1..3}.jpg"),
            text("x-train.csv", "1;to the left\n2;to the right\n"),
            text("x-validation.csv", "3;to the left\n"),
        ),
        *("video_list", "video", 2, 1),
        classes=["to the left", "to the right"],
    ),
    Case(
        "folders of videos with lists of splits",
        lambda make: steps(
            lambda m: videos(m, "UCF/{a,b}/v_g{01..03}.avi"),
            text("lists/trainlist01.txt", "a/v_g01.avi 1\na/v_g02.avi 1\nb/v_g01.avi 2\n"),
            text("lists/testlist01.txt", "a/v_g03.avi\nb/v_g03.avi\n"),
        )(make),
        *("video_folders", "video", 3, None, 2),
    ),
    Case(
        "classes at the end of names of files",
        images("img{1..6}_{cat,dog}.jpg"),
        *("file_names", "classification", 12),
        given={"task": "classification"},
        classes=["cat", "dog"],
    ),
    Case(
        "classes in names of files",
        images("{cat,dog}.{1..9}.jpg"),
        *("file_names", "classification", 18),
        given={"task": "classification"},
        classes=["cat", "dog"],
    ),
    Case(
        "classes in names of files in splits",
        images("{train,val}/{Leaf smut,pug}{1..6}.JPG"),
        *("file_names", "classification", 12, 12),
        given={"task": "classification"},
        classes=["Leaf smut", "pug"],
    ),
    Case(
        "a folder of videos beside lists",
        lambda make: steps(lambda m: videos(m, "UCF/{run,jump}/{1..2}.avi"), text("lists/a.txt", "run/1.avi\n"))(make),
        *("video_folders", "video", 4),
    ),
    Case("images", images("{1..5}.jpg"), "images", "selfsup", 5),
    Case("images in splits", images("train/{1..5}.jpg", "val/1.jpg", "test/{1..2}.jpg"), "images", "selfsup", 5, 1, 2),
    Case("images of classes without labels", images(*CAT_SPLITS), "class_folders", "selfsup", 6, 2, given=SELFSUP),
    Case(
        "images with broken labels",
        steps(images("a/{1..5}.jpg"), text("instances_train.json", "{")),
        "images",
        "selfsup",
        5,
        given=SELFSUP,
    ),
    Case(
        "images with boxes, without labels",
        steps(images("train/{1..2}.jpg"), content("annotations/instances_train.json", coco(TWO))),
        *("coco", "selfsup", 2),
        given=SELFSUP,
    ),
]

CASES = [*CLASSIFICATION, *DETECTION, *SEGMENTATION, *OTHERS]

AMBIGUOUS = [
    Wrong(
        "many folders with few images",
        images("{name00..name60}/1.jpg".replace("name", "")),
        ["several ways", "--task classification", "--task reid"],
    ),
    Wrong("folders that are numbered", images("c{001..030}/{1..2}.jpg"), ["--task classification", "--task reid"]),
    Wrong(
        "boxes and maps",
        steps(
            images("images/{1..2}.jpg"),
            maps("masks/{1..2}.png"),
            content("annotations/instances_train.json", coco(TWO)),
        ),
        ["--task detection", "--task segmentation"],
    ),
    Wrong(
        "boxes and panoptic segments",
        steps(
            images("train/{1..2}.jpg"),
            maps("panoptic_train/{1..2}.png"),
            content("annotations/instances_train.json", coco(TWO)),
            content("annotations/panoptic_train.json", panoptic(TWO)),
        ),
        ["--task detection", "--task panoptic"],
    ),
    Wrong(
        "two formats of boxes",
        steps(
            images("{1..2}.jpg"),
            content("coco_train.json", coco(TWO)),
            *(text(f"{number}.xml", voc_xml()) for number in (1, 2)),
        ),
        ["--layout coco", "--layout voc"],
    ),
    Wrong(
        "boxes and maps of Pascal VOC",
        steps(
            images("JPEGImages/{1..2}.jpg"),
            maps("SegmentationClass/{1..2}.png"),
            *(text(f"Annotations/{number}.xml", voc_xml()) for number in (1, 2)),
            *(text(f"ImageSets/{kind}/train.txt", "1\n2\n") for kind in ("Main", "Segmentation")),
        ),
        ["--task detection", "--task segmentation"],
    ),
    Wrong(
        "a list with two columns of labels",
        steps(images("{1..4}.jpg"), text("a.csv", "path,color,shape\n1.jpg,a,x\n2.jpg,b,x\n3.jpg,a,y\n4.jpg,b,y\n")),
        ["a.csv", "color, shape", "call one of them label"],
    ),
    Wrong(
        "a list with points",
        steps(
            images("{1..4}.jpg"), text("a.csv", ",0,1\n1.jpg,2.0,3.0\n2.jpg,2.0,4.0\n3.jpg,1.0,3.0\n4.jpg,1.0,4.0\n")
        ),
        ["a.csv", "0, 1 may be the labels", "points are not predicted"],
    ),
    Wrong(
        "files of annotations in folders that may be classes",
        steps(
            images("{us,eu}/{1..3}.jpg"),
            *(text(f"{place}/{i}.txt", "plate YG9X2G\n") for place in ("us", "eu") for i in (1, 2)),
        ),
        ["4 files next to 6 images, such as eu/1.txt", "no format of annotations", "--task classification"],
    ),
    Wrong(
        "folders of images in those that may be classes",
        images("Dataset/{0..3}/{1..2}.jpg", "Examples/{1..3}.jpg"),
        ["Dataset holds folders of images, 0, 1, 2", "Dataset", "--layout class_folders", "--layout leaf_folders"],
    ),
    Wrong(
        "names of files that may begin with classes",
        images("{cat,dog}.{1..9}.jpg"),
        ["several ways", "--task classification", "cat, dog", "--task selfsup"],
    ),
    Wrong(
        "names of files that may end with classes",
        images("ab{1..9}-{cat,dog}.png"),
        ["several ways", "--task classification", "end with: cat, dog", "--task selfsup"],
    ),
    Wrong(
        "numbers in place of classes",
        steps(images("{1..4}.jpg"), text("a.csv", "path,age\n1.jpg,20.5\n2.jpg,31\n3.jpg,44\n4.jpg,9\n")),
        ["a.csv", "age has numbers", "regression"],
    ),
    Wrong(
        "annotations of another format beside one folder of images",
        steps(images("pics/{1..2}.jpg"), *(text(f"gt/gt_{i}.txt", "1,1,4,1,4,4,1,4,Hello\n") for i in (1, 2))),
        ["2 images", "gt_1.txt", "is not recognized"],
    ),
    Wrong(
        "images and maps of other names",
        steps(images("x{1..4}.jpg"), maps("y{5..8}.png")),
        ["8 images without labels, of which many have few values", "y5.png", "--task selfsup"],
    ),
    Wrong(
        "landmarks",
        steps(images("{1..4}.jpg"), text("a.txt", "".join(f"{i}.jpg 0 4 3 3 2 2 1 0 3 0\n" for i in range(1, 5)))),
        ["4 images without labels", "a.txt is not recognized", "--task selfsup"],
    ),
    Wrong(
        "a list of images with something else",
        steps(images("{1..4}.jpg"), text("all.txt", "1.jpg 3 cats\n2.jpg no dog\n")),
        ["4 images without labels", "all.txt is not recognized", "--task selfsup"],
    ),
    Wrong(
        "a few images among other files",
        steps(images("{1..2}.png"), *(text(f"{name}.py", "") for name in "abc")),
        ["2 images without labels among 5 files", "--task selfsup"],
    ),
    Wrong(
        "two files of VIA",
        steps(images("{1..2}.jpg"), content("a.json", via_json(TWO)), content("b.json", via_json(TWO[:1]))),
        ["a.json", "b.json", "remove or rename all but one"],
    ),
    Wrong(
        "two lists of boxes",
        steps(images("{1..2}.jpg"), *(text(f"{name}.csv", f"{TF}1.jpg,8,8,cat,1,1,5,5\n") for name in "ab")),
        ["--layout boxes_a", "--layout boxes_b"],
    ),
    Wrong(
        "a list of boxes to test on",
        steps(images("{1..2}.jpg"), text("test.csv", f"{TF}1.jpg,8,8,cat,1,1,5,5\n")),
        ["test", "none to train on"],
    ),
    Wrong(
        "a list and class folders",
        steps(images("{a,b}/{1..2}.jpg"), text("x.csv", "path,label\na/1.jpg,u\na/2.jpg,v\nb/1.jpg,u\nb/2.jpg,v\n")),
        ["--layout list", "--layout class_folders"],
    ),
    Wrong(
        "several masks of few images",
        steps(images("images/{1..5}.jpg"), maps("masks/{1,2,3,4,5,5_1}.png", values=(0, 255))),
        ["--task instance_segmentation", "6 masks of one object each", "--layout maps    # "],
    ),
    Wrong(
        "masks of two annotators, or of two objects",
        steps(images("images/{1..2}.jpg"), maps("masks/{1..2}_{anna,ben}.png", values=(0, 255))),
        ["--task instance_segmentation", "of 2 classes", "--layout maps    # "],
    ),
    Wrong(
        "masks of objects whose names end with texts",
        steps(
            images("images/{1..2}.jpg"),
            *(maps(f"masks/{i % 2 + 1}_{chr(97 + i)}x.png", values=(0, 255)) for i in range(26)),
        ),
        ["masks of objects have 26 classes in their names", "1_cat_0.png for 1.jpg"],
    ),
    Wrong(
        "masks of objects to test on",
        steps(images("test/images/1.jpg"), maps("test/masks/{1_0,1_1}.png", values=(0, 255))),
        ["data for test, and none to train on"],
    ),
    Wrong(
        "two lists",
        steps(
            images("{1..2}.jpg"),
            text("a.csv", "path,label\n1.jpg,a\n2.jpg,b\n"),
            text("b.csv", "path,label\n1.jpg,x\n2.jpg,y\n"),
        ),
        ["--layout list_a", "--layout list_b"],
    ),
]

BROKEN = [
    Wrong(
        "a single video of CVAT",
        steps(images("images/{1..2}.jpg"), text("annotations.xml", CVAT_VIDEO)),
        ["has tracks of a video; expected a folder for each video: a/annotations.xml, a/images/frame_000000.png"],
    ),
    Wrong(
        "videos of two formats",
        steps(
            images("train/a/img1/1.jpg", "val/a/images/1.jpg"),
            text("train/a/gt/gt.txt", "1,1,1,1,4,4,1"),
            text("val/a/annotations.xml", CVAT_VIDEO),
        ),
        ["has videos in the formats of cvat and mot; give one of them"],
    ),
    Wrong("nothing", lambda make: None, ["is empty"]),
    Wrong("empty folders", lambda make: (make.root / "a").mkdir(), ["is empty"]),
    Wrong("no such folder", lambda make: None, ["there is no such folder"], file="gone"),
    Wrong(
        "other files", steps(text("a.py", ""), text("b/c.md", "")), ["no layout", "1 .py", "1 .md", "nearest", "b/c.md"]
    ),
    Wrong(
        "annotations of another format",
        steps(images("{1..2}.jpg"), text("other.json", '{"1.jpg": {"areas": []}}')),
        ["2 images", "other.json is not recognized", "nearest", "--task selfsup"],
    ),
    Wrong(
        "several folders of data",
        steps(
            images("{a,b}/JPEGImages/1.jpg"),
            text("a/Annotations/1.xml", voc_xml()),
            text("b/Annotations/1.xml", voc_xml()),
        ),
        ["several folders of data", "a"],
    ),
    Wrong(
        "several folders of data, of which one has boxes",
        steps(images("{a,b}/{train,val}/{x,y}/1.jpg"), lambda make: yolo(make, ("c/images/train", "c/labels/train"))),
        ["several folders of data", "a"],
    ),
    Wrong(
        "folders with a few images",
        steps(
            images("{docs,tests}/x/1.png"),
            *(text(f"{name}/1.py", "") for name in ("src", "lib", "bin")),
            text("a.json", "{}"),
        ),
        ["2 images", "a.json"],
    ),
    Wrong(
        "maps that are JPEG, of many values",
        steps(images("images/{1..2}.jpg"), maps("masks/{1..2}.jpg", values=tuple(range(0, 200, 5)))),
        ["masks", "JPEG changes the values", "as PNG"],
    ),
    Wrong(
        "tracks of CVAT",
        text("annotations.xml", "<annotations><meta></meta><track id='0'></track></annotations>"),
        ["annotations.xml", "tracks"],
    ),
    Wrong(
        "Roboflow without train",
        steps(images("valid/{1..2}.jpg"), content("valid/_annotations.coco.json", coco(TWO))),
        ["train/_annotations.coco.json"],
    ),
    Wrong(
        "JSON that is cut off",
        steps(images("train/1.jpg"), text("annotations/instances_train.json", '{"images": [')),
        ["instances_train.json is not JSON"],
    ),
    Wrong(
        "an empty JSON file",
        steps(images("train/1.jpg"), text("annotations/instances_train.json", "")),
        ["instances_train.json is empty"],
    ),
    Wrong(
        "no images of a JSON file",
        steps(images("train/9.jpg"), content("annotations/instances_train.json", coco(TWO))),
        ["instances_train.json", "1.jpg", "not found"],
    ),
    Wrong(
        "no JSON to train on",
        steps(images("val/{1..2}.jpg"), content("annotations/instances_val.json", coco(TWO))),
        ["instances_val.json", "to train on"],
    ),
    Wrong(
        "pointers of Git LFS",
        text("a/1.jpg", "version https://git-lfs.github.com/spec/v1\noid x"),
        ["a/1.jpg", "git lfs pull"],
    ),
    Wrong(
        "LabelMe without shapes",
        steps(images("1.jpg"), content("1.json", labelme_json("1.jpg") | {"shapes": []})),
        ["LabelMe without shapes"],
    ),
    Wrong("one class", images("cat/{1..5}.jpg"), ["one folder with images, cat", "--task selfsup"]),
    Wrong("one class in train", images("train/cat/{1..5}.jpg"), ["train has one folder", "cat"]),
    Wrong("val without train", images("val/{cat,dog}/1.jpg"), ["val has class folders", "none to train on"]),
    Wrong(
        "another class in val",
        images("train/{a,b}/1.jpg", "val/{a,x}/1.jpg"),
        ["val/x", "no classes of the training data"],
    ),
    Wrong("other classes in val", images("train/{a,b}/1.jpg", "val/{x,y}/{1..2}.jpg"), ["val/x", "--task reid"]),
    Wrong(
        "images without maps",
        steps(images("images/{1..4}.jpg"), maps("masks/9.png")),
        ["images", "masks", "fewer than half"],
    ),
    Wrong(
        "maps with shades of gray",
        steps(images("images/1.jpg"), maps("masks/1.png", values=tuple(range(0, 256, 3)))),
        ["masks", "different gray values"],
    ),
    Wrong(
        "maps with more values than names",
        steps(images("images/1.jpg"), maps("masks/1.png", values=(0, 7)), text("classes.txt", "a\nb\n")),
        ["value 7", "classes.txt", "0 to 1"],
    ),
    Wrong("a map that is no image", steps(images("images/1.jpg"), text("masks/1.png", "x")), ["masks/1.png"]),
    Wrong(
        "paths of data.yaml",
        steps(lambda make: yolo(make, ("images/train", "labels/train")), text("data.yaml", YAML)),
        ["data.yaml: val is images/val", "there is no"],
    ),
    Wrong(
        "data.yaml that is no YAML",
        steps(images("images/train/1.jpg"), text("data.yaml", YAML + "x: [")),
        ["data.yaml is not YAML"],
    ),
    Wrong(
        "data.yaml without train",
        steps(
            lambda make: yolo(make, ("images/val", "labels/val")),
            text("data.yaml", YAML.replace("train: images/train\n", "")),
        ),
        ["none to train on", "data.yaml"],
    ),
    Wrong(
        "keypoints of YOLO with another shape",
        steps(lambda make: yolo(make, *PLACES), text("data.yaml", YAML + "kpt_shape: [17, 4]\n")),
        ["data.yaml: kpt_shape is [17, 4]; expected the number of keypoints, and 2 or 3"],
    ),
    Wrong(
        "keypoints of YOLO without a data.yaml",
        lambda make: yolo(make, ("images", "labels"), line="0 0.5 0.5 0.5 0.5 0.5 0.5 2 0 0 0\n" * 5),
        ["has 11 numbers, as keypoints have", "kpt_shape: [2, 3]", "otherwise:", "--task instance_segmentation"],
    ),
    Wrong(
        "objects of four corners",
        lambda make: yolo(make, ("images", "labels"), line=CORNERS),
        ["--task detection ", "as oriented boxes", "--task instance_segmentation ", "as polygons"],
    ),
    Wrong(
        "names of data.yaml",
        steps(
            lambda make: yolo(make, ("images/train", "labels/train")),
            text("data.yaml", "train: images/train\nnames: 3\n"),
        ),
        ["data.yaml: names is 3"],
    ),
    Wrong(
        "Supervisely with tags only",
        steps(images("a/img/1.jpg"), content("a/ann/1.json", {"tags": ["a"], "objects": [], "size": {}})),
        ["JSON files of Supervisely without objects; tags of images are not read"],
    ),
    Wrong(
        "maps that number objects, or have few classes",
        steps(images("images/{1..3}.jpg"), numbered("masks/{1..3}.png", 1)),
        ["--task instance_segmentation ", "number the objects", "--task segmentation ", "4 classes"],
    ),
    Wrong(
        "lists of run lengths",
        steps(images("{1..2}.jpg"), text("train.csv", "ImageId,EncodedPixels\n1.jpg,10 3 30 3\n2.jpg,\n")),
        ["train.csv: EncodedPixels has run lengths of masks, which are not read from lists"],
    ),
    Wrong(
        "lists of two kinds of labels",
        steps(
            images("images/{1..4}.jpg"),
            text("images_maker_train.txt", "1 x\n2 y\n"),
            text("images_maker_val.txt", "3 x\n4 y\n"),
            text("images_model_train.txt", "1 a\n2 b\n"),
            text("images_model_val.txt", "3 a\n4 b\n"),
        ),
        ["several ways", "--layout list_images_maker ", "--layout list_images_model "],
    ),
    Wrong(
        "colors in another order",
        steps(
            images("images/{1..2}.jpg"),
            maps("labels/{1..2}.png", values=(1, 2, 3, 9, 8, 7), mode="RGB"),
            text("label_colors.txt", "road 3 2 1\ncar 7 8 9\n"),
        ),
        ["labels: no color of label_colors.txt, such as (3, 2, 1), occurs", "expected red, green, blue"],
    ),
    Wrong("XML without images", steps(text("Annotations/1.xml", voc_xml())), ["Annotations", "no images"]),
    Wrong(
        "no list to train on",
        steps(images("JPEGImages/1.jpg"), text("Annotations/1.xml", voc_xml()), text("ImageSets/Main/val.txt", "1\n")),
        ["ImageSets/Main/train.txt"],
    ),
    Wrong(
        "an XML file of CVAT without images",
        text("annotations.xml", cvat_xml(TWO)),
        ["annotations.xml", "1.jpg", "not found"],
    ),
    Wrong(
        "a list without labels",
        steps(images("{1..2}.jpg"), text("a.csv", "path,size\n1.jpg,0.5\n2.jpg,0.25\n")),
        ["a.csv", "no column with labels", "size"],
    ),
    Wrong(
        "labels that are not trained on",
        steps(
            images("{1..2}.jpg"), text("train.csv", "path,label\n1.jpg,a\n"), text("val.csv", "path,label\n2.jpg,b\n")
        ),
        ["val.csv", "b are no labels in train.csv"],
    ),
    Wrong("no query", images("bounding_box_train/0001_c1.jpg"), ["bounding_box_train", "no query"]),
    Wrong(
        "names without camera",
        images("{bounding_box_train,query,bounding_box_test}/anna.jpg"),
        ["anna.jpg is not named"],
    ),
    Wrong("no idx labels", lambda make: make.write("train-images-idx3-ubyte", b"x"), ["train-labels-idx1-ubyte"]),
    Wrong("a tar file of something else", lambda make: make.write("a.tar", b"x" * 2000), ["a.tar is not a tar file"]),
    Wrong("a folder with an archive", text("data.zip", "PK"), ["data.zip", "unpack it"]),
    Wrong("an archive", text("data.tar.gz", "x"), ["is an archive; unpack it"], file="data.tar.gz"),
    Wrong("an image", images("1.jpg"), ["is an image", "the folder"], file="1.jpg"),
    Wrong("a video", text("1.mp4", ""), ["is a video", "the folder"], file="1.mp4"),
    Wrong("a file of another kind", text("notes.md", "x"), ["notes.md", "no layout"], file="notes.md"),
    Wrong(
        "a task that does not fit",
        images(*CATS),
        ["--task detection does not fit", "2 class folders", "--task classification", "--task reid"],
        {"task": "detection"},
    ),
    Wrong("an unknown task", images(*CATS), ["task: 'boxes' is none of"], {"task": "boxes"}),
    Wrong("an unknown layout", images(*CATS), ["--layout yolo does not fit"], {"layout": "yolo"}),
    Wrong(
        "self-supervision of videos", lambda make: videos(make, "{a,b}/1.mp4"), ["--task selfsup does not fit"], SELFSUP
    ),
    Wrong(
        "a link to itself", lambda make: os.symlink("a", make.root / "a"), ["a cannot be searched", "symbolic links"]
    ),
    Wrong("names with line breaks", lambda make: make.write("a\nb.xyz", b""), ["no layout", "a\\nb.xyz"]),
]

WRONG = [*AMBIGUOUS, *BROKEN]
