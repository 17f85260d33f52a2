"""The pages of the documentation: pages_test.py links|options|console|messages|site.

links     README.md is short, every link of README.md, CONTRIBUTING.md and docs/ leads to a file, and every #anchor to a heading
options   every option that a page shows behind a program's name is in that program's table
console   blocks marked <!-- run --> print what they say; every other console block says what it needs (a
          cluster), or names the script that runs it
messages  messages of the troubleshooting page are in the sources
site      mkdocs builds the site without a warning

Exit status 77: what the test needs is not installed."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(os.environ["SAILOR_SOURCE_DIR"])
BIN = pathlib.Path(os.environ["SAILOR_BIN_DIR"])
BUILD = pathlib.Path(os.environ["SAILOR_BUILD_DIR"])
sys.path.insert(0, str(ROOT / "docs"))
import build as site  # noqa: E402

problems = []
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "packaging" / "README.md",
         *sorted((ROOT / "docs").rglob("*.md"))]


def problem(page, line, what):
    problems.append(f"{page.relative_to(ROOT)}:{line}: {what}")


def anchor_of(heading):
    """As GitHub makes it."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda match: match.group(1) or "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    text = site.FENCE.sub("", path.read_text(encoding="utf-8"))
    return {anchor_of(heading) for heading in re.findall(r"^#+ +(.*)$", text, re.M)}


README_LIMIT = 12 * 1024  # bytes: what people read before they try


def check_links():
    if (size := (ROOT / "README.md").stat().st_size) > README_LIMIT:
        problem(ROOT / "README.md", 1, f"has {size} bytes, more than {README_LIMIT}: move something into docs/")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in site.links_of(text):
            line = text[:max(text.find("](" + target), 0)].count("\n") + 1
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                problem(page, line, f"the link '{target}' leads to no file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                problem(page, line, f"{file.name} has no heading '#{anchor}'")


def options_of(words, cache={}):
    """Options of "sailor-plan" or "sailor-profile layers"; None: this build has no such program."""
    if words in cache:
        return cache[words]
    program, *command = words.split()
    if not (BIN / program).exists():
        cache[words] = None
    else:
        text = subprocess.run([BIN / program, *command, "--version", "--format", "json"], capture_output=True,
                              text=True, check=True).stdout
        known = json.loads(text).get("options", [])
        cache[words] = {*known, "--config", "--print-config", "--verbose", "--version", "--help", "--generate"}
    return cache[words]


def commands_of(program, cache={}):
    if program not in cache:
        overview = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True).stdout
        part = re.search(r"^Commands:\n(.*?)\n\n", overview, re.M | re.S)
        cache[program] = re.findall(r"^  ([a-z]+) ", part.group(1), re.M) if part else []
    return cache[program]


def check_command(page, line, text):
    """Options of every program of Sailor in a command line."""
    for part in re.split(r"[|;&]+|\s--\s", text):
        found = re.search(r"(?:^|[\s/(\"])(sailor(?:-[a-z]+)?)(?=\s|$)(.*)", part)
        if not found or not (BIN / found.group(1)).exists():
            continue
        program, rest = found.group(1), found.group(2).split()
        command = [rest[0]] if rest and rest[0] in commands_of(program) else []
        if program == "sailor" and rest and (BIN / f"sailor-{rest[0]}").exists():
            program = f"sailor-{rest[0]}"
        if commands_of(program) and not command:
            continue
        known = options_of(" ".join([program, *command]))
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]*)(?![a-z0-9-]*\.)", " ".join(rest)):
            if known is not None and option not in known:
                problem(page, line, f"{' '.join([program, *command])} has no option {option}")


def check_options():
    shown = 0
    for page in PAGES:
        for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
            code = re.findall(r"`([^`]+)`", line) if "`" in line else [line] if re.match(r"\s*\$ ", line) else []
            for text in code:
                shown += text.startswith("sailor")
                check_command(page, number, text)
    print(f"{shown} commands looked at")


def blocks(page):
    """(line, mark, text) of each console block."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"(?:<!-- ([^\n]*?) -->\n)?^```console\n(.*?)^```", text, re.M | re.S):
        yield text[:match.start(2)].count("\n") + 1, match.group(1), match.group(2)


def run_block(page, line, text, folder):
    commands = re.split(r"^\$ ", text, flags=re.M)[1:]
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "200", "LC_ALL": "C.UTF-8"}
    for command in commands:
        typed, _, expected = command.partition("\n")
        while typed.endswith("\\"):
            more, _, expected = expected.partition("\n")
            typed = typed[:-1] + more
        done = subprocess.run(["bash", "-euc", typed], cwd=folder, env=environment, text=True, capture_output=True,
                              timeout=240, check=False)
        if done.returncode != 0:
            problem(page, line, f"`{typed}` ends with status {done.returncode}: {done.stderr.strip()[-400:]}")
        # "..." alone stands for any lines, at the end of a line for its rest.
        pattern = "".join("(?:.*\n)*?" if row == "..." else
                          ".*".join(re.escape(part) for part in re.split(r"\.\.\.$", row)) + "\n"
                          for row in expected.rstrip("\n").split("\n") if expected.strip())
        output = "".join(row.rstrip() + "\n" for row in done.stdout.splitlines())
        if not re.match(pattern, output):
            problem(page, line, f"`{typed}` prints something else:\n{output}")


def check_console():
    run = 0
    for page in PAGES:
        for match in re.finditer(r"^```(\w*)\n(\$ )?.*?^```", page.read_text(encoding="utf-8"), re.M | re.S):
            if match.group(2) and match.group(1) != "console":
                problem(page, page.read_text(encoding="utf-8")[:match.start()].count("\n") + 1,
                        "a block with a prompt is a ```console block")
        with tempfile.TemporaryDirectory() as folder:  # one for all blocks of a page, which build on each other
            for line, mark, text in blocks(page):
                if mark == "run":
                    run += 1
                    run_block(page, line, text, folder)
                elif mark and mark.startswith("needs "):
                    pass  # a cluster, or a file that is not here: its options are checked
                elif mark and mark.startswith("run by: "):
                    if not (ROOT / mark[len("run by: "):]).is_file():
                        problem(page, line, f"there is no {mark[len('run by: '):]}")
                else:
                    problem(page, line, "this console block is neither run nor marked: write <!-- run -->, "
                            "<!-- needs WHAT --> or <!-- run by: SCRIPT --> before it")
    print(f"{run} blocks run")


def check_messages():
    sources = ""
    for folder in "src", "slurm", "spank_plugin":
        for file in sorted((ROOT / folder).rglob("*.?pp")):
            sources += file.read_text(encoding="utf-8")
    sources = re.sub(r'"\s*"', "", sources)  # texts that are broken over lines
    page = ROOT / "docs" / "troubleshooting.md"
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        if not line.startswith("| `"):
            continue
        for message in re.findall(r"`([^`]+)`", line.split("|")[1]):
            for part in re.split(r"\.\.\.|\bN\b", message):
                if len(part.strip()) > 3 and part.strip() not in sources:
                    problem(page, number, f"no source says '{part.strip()}'")


def check_site():
    if shutil.which("mkdocs") is None:
        print("skipped: mkdocs is not installed (apt-get install mkdocs)")
        return 77
    programs = BUILD / "share" / "doc" / "sailor" / "programs"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, ROOT / "docs" / "build.py", f"{folder}/site", "--programs", programs],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0 or done.stderr.strip():
            problems.append(done.stdout + done.stderr)
        for name in "index.html", "docs/tutorial.html", "docs/reference/programs/sailor-plan.html":
            if not (pathlib.Path(folder) / "site" / name).is_file():
                problems.append(f"the site has no {name}")
    return 0


def main():
    status = {"links": check_links, "options": check_options, "console": check_console, "messages": check_messages,
              "site": check_site}[sys.argv[1]]()
    for text in problems:
        print("not ok - " + text)
    return 1 if problems else status or 0


if __name__ == "__main__":
    sys.exit(main())
