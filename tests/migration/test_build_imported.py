"""Converted configs of other systems can be built: ``scripts/build_imported.py``.

The folders of checkouts are named by OPABINIA_DETECTRON2 and so on; without them only a handwritten one is built.
"""

import os
from pathlib import Path

import pytest

from opabinia.migration import System
from scripts.build_imported import CONFIGS, results, write_data
from tests.migration.recipes import write_files

RESNET = """
from basecls.configs import ResNetConfig
_cfg = dict(model=dict(name="resnet18"))
class Cfg(ResNetConfig):
    def __init__(self, values_or_file=None, **kwargs):
        super().__init__(_cfg)
        self.merge(values_or_file, **kwargs)
"""


@pytest.mark.slow
def test_a_config_is_built_and_trains_a_step(tmp_path: Path) -> None:
    files = {"a.py": RESNET, "b.py": RESNET, "c.py": RESNET.replace("resnet18", "no_such_net"), "d.py": "import os"}
    write_files(tmp_path / "zoo/public/resnet", files)
    write_data(tmp_path / "data")
    outcomes = [result for _, result in results("basecls", tmp_path, "", tmp_path / "data", 20)]
    assert outcomes == ["trained", "built", "built", "refused"]


@pytest.mark.slow
@pytest.mark.parametrize("system", CONFIGS)
def test_converted_configs_of_a_checkout_are_built(system: System, tmp_path: Path) -> None:
    checkout = os.environ.get(f"OPABINIA_{system.upper()}")
    if not checkout:
        pytest.skip(f"OPABINIA_{system.upper()} names no checkout of {system}")
    write_data(tmp_path)
    outcomes = dict(results(system, Path(checkout), "", tmp_path, 0))
    assert not {file: result for file, result in outcomes.items() if result not in ("built", "refused")}
