#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints each relative link of the Markdown pages in a folder that leads to no file or to no heading in it.

    tests/packages/links.py FOLDER

Exit code 1: there is one. Links into the web and in code are left out.
"""

import pathlib
import re
import sys
import urllib.parse

CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1|`+[^`\n]*`+", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|<(?:img|a)\s[^>]*?(?:src|href)=\"([^\"]+)\"|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
NAMED = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def anchors(page):
    """As GitHub makes them: small letters, hyphens for spaces, no punctuation."""
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(text))
    return set(NAMED.findall(text)) | {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page, root):
    for groups in LINK.findall(CODE.sub("", page.read_text())):
        link = next(filter(None, groups))
        url = urllib.parse.urlsplit(link)
        if url.scheme or url.netloc:
            continue
        target = (page.parent / urllib.parse.unquote(url.path)).resolve() if url.path else page
        if not target.is_relative_to(root) or not target.exists():
            yield link
        elif url.fragment and target.suffix == ".md" and url.fragment not in anchors(target):
            yield link


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = sorted(root.rglob("*.md"))
    found = [f"{page.relative_to(root)}: {link}" for page in pages for link in broken(page, root)]
    print("\n".join(found) if found else f"{len(pages)} pages have no broken link")
    sys.exit(1 if found or not pages else 0)


if __name__ == "__main__":
    main()
