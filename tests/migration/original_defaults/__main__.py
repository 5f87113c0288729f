"""Write the tables from checkouts of the original systems."""

import argparse
import json
from pathlib import Path

from tests.migration.original_defaults import FOLDER, basecls_defaults, detectron2_defaults
from tests.migration.original_defaults.fastreid_vissl import fastreid_facts, vissl_facts

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--basecls", type=Path)
parser.add_argument("--detectron2", type=Path)
parser.add_argument("--fastreid", type=Path)
parser.add_argument("--vissl", type=Path)
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
