"""The commands of docs/coming_from run as they stand there, on files of those names; links lead to files."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opabinia.cli import app
from tests.config.importing import test_basecls, test_detectron2, test_fastreid, test_vissl
from tests.config.importing.recipes import written
from tests.config.test_paddlevideo import MULTIGRID

PAGES = Path(__file__).resolve().parents[2] / "docs" / "coming_from"
SIMCLR = test_vissl.config_of("{name: simclr_info_nce_loss}")
REGNET = test_basecls.config_of("RegNetConfig", 'model=dict(name="regnety_004")')
FILES = {
    "mask_rcnn_R_50_FPN_1x.yaml": test_detectron2.BASE,
    "own.yaml": test_detectron2.BASE,
    "configs/Market1501/sbs_R50.yml": test_fastreid.BASE,
    "own.yml": test_fastreid.BASE,
    "configs/config/pretrain/swav/swav_8node_resnet.yaml": SIMCLR,
    "config/pretrain/simclr/models/resnext101.yaml": "config: {MODEL: {TRUNK: {RESNETS: {DEPTH: 101}}}}",
    "zoo/public/regnet/regnety_004.py": REGNET,
    "own.py": REGNET,
    "slowfast_multigrid.yaml": MULTIGRID,
}


def commands() -> list[str]:
    """The commands of all pages, without what is written to files."""
    found = re.findall(
        r"^opabinia (config import .+)$", "\n".join(page.read_text() for page in PAGES.glob("*.md")), re.M
    )
    return [line.partition(">")[0].strip() for line in found]


@pytest.mark.parametrize("command", commands())
def test_the_command_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vissl = {"own.yaml": SIMCLR} if "import vissl" in command else {}
    written(tmp_path, {**FILES, **vissl})
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link
