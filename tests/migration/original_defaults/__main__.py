"""Write the tables from checkouts of the original systems."""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from opabinia.migration.tables import mmaction
from tests.migration.original_defaults import FOLDER, basecls_defaults, detectron2_defaults, openmmlab
from tests.migration.original_defaults.fastreid_vissl import fastreid_facts, vissl_facts
from tests.migration.test_openmmlab_defaults import CONFIGS, read_text, typed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--basecls", type=Path)
parser.add_argument("--detectron2", type=Path)
parser.add_argument("--fastreid", type=Path)
parser.add_argument("--vissl", type=Path)
parser.add_argument("--openmmlab", type=Path, nargs="+", help="folders that contain the packages")
arguments = parser.parse_args()
TABLES = {
    "basecls": basecls_defaults,
    "detectron2": detectron2_defaults,
    "fastreid": fastreid_facts,
    "vissl": vissl_facts,
}
for name, table in TABLES.items():
    if checkout := getattr(arguments, name):
        text = json.dumps(table(checkout), indent=1)
        (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
if arguments.openmmlab:
    types = {system: set(mmaction.CLASSES) if system == "mmaction" else set() for system in openmmlab.SYSTEMS}
    with TemporaryDirectory() as folder:
        for system, text in CONFIGS:
            types[system] |= {options["type"] for _, options in typed(read_text(Path(folder), text))}
    defaults = openmmlab.class_defaults(arguments.openmmlab, types)
    lines = [
        f" {json.dumps(system)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in classes.items())
        + "\n }"
        for system, classes in defaults.items()
    ]
    (FOLDER / "openmmlab.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
