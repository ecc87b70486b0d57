#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes an OCI image of the static binary, without a daemon.

    packaging/oci.py BINARY LICENCES VERSION OUTPUT

OUTPUT is a tar file with the layout of an image (github.com/opencontainers/image-spec, image-layout.md), which `podman
load`, `skopeo copy oci-archive:` and `docker load` (from 25.0 on) read. The image has the binary, the files of the
folder LICENCES and a folder for temporary files. Its time is SOURCE_DATE_EPOCH.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile
import time


def entry(name, kind, mode, size=0):
    """A header of a tar file."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.mtime = kind, mode, size, epoch()
    return info


def epoch():
    return int(os.environ["SOURCE_DATE_EPOCH"])


def tar_of(files, folders=()):
    """The bytes of a tar file with these files, name → (bytes, mode), and folders, name → mode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, mode in folders:
            tar.addfile(entry(name, tarfile.DIRTYPE, mode))
        for name, (data, mode) in files:
            tar.addfile(entry(name, tarfile.REGTYPE, mode, len(data)), io.BytesIO(data))
    return out.getvalue()


def read(path):
    with open(path, "rb") as file:
        return file.read()


def main():
    binary, licences, version, output = sys.argv[1:]
    texts = sorted(path for path in pathlib.Path(licences).rglob("*") if path.is_file())
    folders = [("usr", 0o755), ("usr/bin", 0o755), ("usr/share", 0o755), ("usr/share/doc", 0o755),
               ("usr/share/doc/wallprof", 0o755), ("usr/share/doc/wallprof/LICENSES", 0o755), ("tmp", 0o1777)]
    documents = [(f"usr/share/doc/wallprof/{path.relative_to(licences)}", (read(path), 0o644)) for path in texts]
    layer = tar_of([("usr/bin/wallprof", (read(binary), 0o755)), *documents], folders)
    packed = gzip.compress(layer, 9, mtime=0)
    blobs = {}

    def add(kind, data):
        """Its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    def text(value):
        return json.dumps(value, sort_keys=True).encode()

    labels = {"org.opencontainers.image.title": "wallprof", "org.opencontainers.image.version": version,
              "org.opencontainers.image.licenses": "Apache-2.0 AND (MIT OR GPL-2.0-only) AND LGPL-2.1-or-later AND LGPL-3.0-or-later"}
    config = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch())), "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": ["/usr/bin/wallprof"], "Env": ["PATH=/usr/bin"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add("config.v1+json", text(config)), "layers": [add("layer.v1.tar+gzip", packed)],
    }
    # The first is what podman goes by, the second what docker does.
    names = dict.fromkeys(("org.opencontainers.image.ref.name", "io.containerd.image.name"), f"localhost/wallprof:{version}")
    described = {**add("manifest.v1+json", text(manifest)), "annotations": names,
                 "platform": {"architecture": "amd64", "os": "linux"}}
    files = {"oci-layout": text({"imageLayoutVersion": "1.0.0"}),
             "index.json": text({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
                                 "manifests": [described]}), **blobs}
    with open(output, "wb") as file:
        file.write(tar_of([(name, (data, 0o644)) for name, data in sorted(files.items())],
                          [("blobs", 0o755), ("blobs/sha256", 0o755)]))


if __name__ == "__main__":
    main()
