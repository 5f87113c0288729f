"""A text file with the faces of all images: WIDER FACE."""

from __future__ import annotations

from pathlib import Path

import pytest

from opabinia.data.sources import wider_face
from tests.data.layouts.folders import Maker, images

FACES = """1/a.jpg
2
1 2 3 4 0 0 0 0 0 0
0 0 8 8 2 0 0 1 2 0
2/b.jpg
0
0 0 0 0 0 0 0 0 0 0
2/c.jpg
1
0 0 2 2
"""


def test_faces(tmp_path: Path) -> None:
    images("1/a.jpg", "2/{b,c}.jpg")(Maker(tmp_path))
    file = tmp_path / "faces.txt"
    file.write_text(FACES, encoding="utf-8")
    source = wider_face(root=tmp_path, file=file)
    boxes = [source[index]["ground_truth"].boxes.tolist() for index in range(3)]
    assert boxes == [[[1, 2, 3, 4]], [], [[0, 0, 2, 2]]]
    assert source.classes == ("face",) and [source.id(index) for index in range(3)] == ["1/a.jpg", "2/b.jpg", "2/c.jpg"]
    assert len(wider_face(root=tmp_path, file=file, empty="drop")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1/a.jpg\n2\n1 2 3 4\n2/b.jpg\n0\n",
            r"faces.txt, line 1: '1/a.jpg': expected the path of an image, the number",
        ),
        ("1/a.jpg\nmany\n1 2 3 4\n", r"faces.txt, line after line 1: number of faces: "),
        ("1/a.jpg\n-1\n", r"faces.txt, line after line 1: number of faces: "),
        ("1/a.jpg\n", r"faces.txt, line after line 1: number of faces: "),
        ("1/a.jpg\n1\n1 2 3 x\n", r"line 3: "),
        ("faces\n1\n1 2 3 4\n", r"faces.txt, line 1: 'faces': expected the path of an image"),
    ],
)
def test_errors_name_the_line(text: str, message: str, tmp_path: Path) -> None:
    images("1/a.jpg", "2/{b,c}.jpg")(Maker(tmp_path))
    (tmp_path / "faces.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        wider_face(root=tmp_path, file=tmp_path / "faces.txt")
