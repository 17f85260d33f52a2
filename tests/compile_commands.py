#!/usr/bin/env python3
"""compile_commands.py BUILD: prints the build's compile commands, with one for every source of a unity build.

CMake names only the files that such a build compiles, each of which includes several sources. A source that is compiled
by itself as well keeps that command. Keys stand on lines of their own, "command" right before "file", as CMake writes them.
"""

import json
import pathlib
import re
import sys

entries = json.loads(pathlib.Path(sys.argv[1], "compile_commands.json").read_text())
known = {entry["file"] for entry in entries}
for entry in list(entries):
    batch = pathlib.Path(entry["file"])
    if batch.parent.name != "Unity" or not batch.exists():
        continue
    for source in re.findall(r'#include "(.*)"', batch.read_text()):
        if source not in known:
            known.add(source)
            command = entry["command"].replace(entry["file"], source)
            entries.append({"directory": entry["directory"], "command": command, "file": source})
json.dump(entries, sys.stdout, indent=0)
