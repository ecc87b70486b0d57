# SPDX-License-Identifier: Apache-2.0
"""Writes the schemas of a version with their definitions inside, as kubeconform reads them: schemas.py FROM TO

FROM is a folder of the package kubernetes-validate, whose schemas refer to `/api/_definitions.json`."""

import json
import os
import sys

KINDS = ["namespace-v1", "serviceaccount-v1", "configmap-v1", "daemonset-apps-v1"]


def read(folder, name):
    with open(os.path.join(folder, f"{name}.json"), encoding="utf-8") as file:
        return json.loads(file.read().replace("/api/_definitions.json#", "#"))


source, target = sys.argv[1:]
definitions = read(source, "_definitions")["$defs"]
os.makedirs(target, exist_ok=True)
for kind in KINDS:
    with open(os.path.join(target, f"{kind}.json"), "w", encoding="utf-8") as file:
        json.dump({**read(source, kind), "$defs": definitions}, file)
