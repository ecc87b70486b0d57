# SPDX-License-Identifier: Apache-2.0
"""Busy with dictionaries, regular expressions, JSON and hashes, and asleep in between."""

import hashlib
import json
import re
import time


def work():
    items = [{"name": f"item-{i * 7919 % 500}", "price": i / 3} for i in range(500)]
    text = json.dumps(sorted(items, key=lambda item: item["name"]))
    found = re.findall(r'"name": "item-(\d+)"', text)
    return hashlib.sha256(text.encode()).hexdigest(), sum(map(int, found))


while True:
    work()
    time.sleep(0.005)
