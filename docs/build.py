#!/usr/bin/env python3
"""Builds the documentation: every page that README.md leads to, the pages that the programs wrote about themselves, and
the newest results of experiments, as one site. A warning of mkdocs ends it with status 1.

Usage: docs/build.py OUTPUT [--programs FOLDER] [--pages-only]

  OUTPUT             folder for the site; OUTPUT-pages beside it holds the pages it is made of
  --programs FOLDER  pages of the programs (build/share/doc/sailor/programs)
  --pages-only       stage the pages without mkdocs
"""
import argparse
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.M | re.S)


def links_of(text):
    """Targets of the links of a page, outside of code."""
    return [match.group(2) for match in LINK.finditer(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text)))]


def pages_and_files():
    """All files that README.md and docs/ lead to, relative to the root. A target that is not there is an error."""
    found, waiting = set(), ["README.md"]
    waiting += [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if not name.endswith(".md"):
            continue
        for target in links_of((ROOT / name).read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:|#", target):
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(name), target.split("#")[0]))
            if not (ROOT / path).is_file():
                sys.exit(f"{name}: the link '{target}' leads to no file")
            waiting.append(path)
    return sorted(found)


def stage(folder, programs):
    """Copies the pages; returns the names of the programs that have one."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in pages_and_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    names = []
    if programs is not None:
        target = folder / "docs" / "reference" / "programs"
        target.mkdir(parents=True, exist_ok=True)
        for page in sorted(programs.glob("*.md")):
            shutil.copyfile(page, target / page.name)
            names.append(page.stem)
    return names


def main():
    parser = argparse.ArgumentParser(add_help=True, usage=__doc__)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--programs", type=pathlib.Path)
    parser.add_argument("--pages-only", action="store_true")
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    pages = output.with_name(output.name + "-pages")
    names = stage(pages / "docs_dir", arguments.programs)
    if arguments.pages_only:
        return 0
    mkdocs = shutil.which("mkdocs")
    if mkdocs is None:
        sys.exit("mkdocs is not installed: apt-get install mkdocs, or pip install mkdocs mkdocs-material")
    config = (ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8")
    if names:  # a page for each program, below "Programs"
        entries = "".join(f"      - {name}: docs/reference/programs/{name}.md\n" for name in names)
        config = config.replace("      - Files: docs/reference/files.md\n",
                                entries + "      - Files: docs/reference/files.md\n")
    theme = "material" if importlib.util.find_spec("material") else "readthedocs"
    config += f"theme:\n  name: {theme}\ndocs_dir: docs_dir\nsite_dir: {output}\n"
    (pages / "mkdocs.yml").write_text(config, encoding="utf-8")
    return subprocess.run([mkdocs, "build", "--strict", "--quiet", "--config-file", str(pages / "mkdocs.yml")],
                          check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
