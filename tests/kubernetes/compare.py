# SPDX-License-Identifier: Apache-2.0
"""Fails unless the rendered chart has the objects of the manifest: compare.py MANIFEST RENDERED

Left out: the namespace, which `helm --create-namespace` makes, and the checksum of the configuration."""

import sys

import yaml


def objects(path):
    with open(path, encoding="utf-8") as file:
        found = {one["kind"]: one for one in yaml.safe_load_all(file) if one and one["kind"] != "Namespace"}
    found["DaemonSet"]["spec"]["template"]["metadata"]["annotations"].pop("checksum/config", None)
    return found


manifest, rendered = (objects(path) for path in sys.argv[1:])
if manifest.keys() != rendered.keys():
    sys.exit(f"other kinds: {sorted(manifest)} and {sorted(rendered)}")
for kind, one in manifest.items():
    if one != rendered[kind]:
        sys.exit(f"{kind} differs:\n{yaml.safe_dump(one)}\n--- and\n{yaml.safe_dump(rendered[kind])}")
