"""Completions in a shell that runs on a terminal: what the Tab key makes of the beginning of a command.

Usage: completions_test.py bash|zsh|fish. Exit status 77: the shell is not installed."""
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

build = os.environ["SAILOR_BUILD_DIR"]
share = os.path.join(build, "share")
# What is typed, and what must then stand on the line or be offered.
EXPECTED = [
    ("sailor-plan --availa", ["--availability"]),
    ("sailor-plan --availability i", ["idle"]),
    ("sailor-plan --space ", ["full", "paper"]),
    ("sailor-simulate --form", ["--format"]),
    ("sailor-profile lay", ["layers"]),
    ("sailor-profile layers --recompute se", ["selective"]),
    ("sailor-plan --model tiny", ["tiny-gpt"]),
    ("sailor-plan --cluster clus", ["cluster.toml"]),
    ("sailor simul", ["simulate"]),
    ("sailor plan --availa", ["--availability"]),
    ("sailor models --for", ["--format"]),
]
LIMIT_S = 20.0  # for one answer; a shell takes a few tenths of a second


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command, environment, folder):
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def read_until(self, wanted):
        """What appears until `wanted` (a function of the text) is true, or the limit is over."""
        text, end = "", time.monotonic() + LIMIT_S
        while time.monotonic() < end and not wanted(text):
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    text += os.read(self.terminal, 65536).decode(errors="replace")
                except OSError:
                    break
                text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r|\x07", "", text)
        return text

    def close(self):
        os.kill(self.process, signal.SIGKILL)
        os.close(self.terminal)
        os.waitpid(self.process, 0)


def start(shell, folder, environment):
    if shell == "bash":
        with open(os.path.join(folder, "rc"), "w") as file:
            file.write(f'for file in "{share}"/bash-completion/completions/sailor*; do source "$file"; done\n'
                       "bind 'set show-all-if-ambiguous on'\nbind 'set completion-query-items 0'\n"
                       "bind 'set page-completions off'\nbind 'set enable-bracketed-paste off'\nPS1='READY '\n")
        return Terminal(["bash", "--noprofile", "--rcfile", os.path.join(folder, "rc"), "-i"], environment, folder)
    environment["ZDOTDIR"] = folder
    with open(os.path.join(folder, ".zshrc"), "w") as file:
        file.write(f'fpath=("{share}/zsh/site-functions" $fpath)\nautoload -U compinit && compinit -u -D\n'
                   "unsetopt zle_bracketed_paste prompt_cr prompt_sp\nLISTMAX=10000\nsetopt no_always_last_prompt auto_list no_list_ambiguous\n"
                   "zstyle ':completion:*' verbose no\nPROMPT='READY '\n")
    return Terminal(["zsh", "-d", "-i"], environment, folder)


def answers_of_terminal(shell, folder, environment):
    for typed, expected in EXPECTED:
        # A shell for each, so that nothing of the last answer is left on the line.
        terminal = start(shell, folder, environment)
        terminal.read_until(lambda text: "READY" in text)
        terminal.type(typed + "\t")
        seen = terminal.read_until(lambda text: not missing_words(expected, text))
        yield typed, expected, seen
        terminal.close()


def missing_words(expected, seen):
    return [word for word in expected if not re.search(r"(^|[\s'])" + re.escape(word) + r"($|[\s=',])", seen)]


def answers_of_fish(folder, environment):
    environment["HOME"] = folder
    files = os.path.join(share, "fish", "vendor_completions.d")
    for typed, expected in EXPECTED:
        script = f"for file in {files}/*.fish; source $file; end; complete -C '{typed}'"
        found = subprocess.run(["fish", "--no-config", "-c", script], cwd=folder, env=environment, text=True,
                               capture_output=True, timeout=60, check=False)
        yield typed, expected, found.stdout + found.stderr


def main():
    shell = sys.argv[1]
    if shutil.which(shell) is None:
        print(f"skipped: {shell} is not installed (apt-get install {shell})")
        return 77
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "cluster.toml"), "w").close()
        environment = {"PATH": os.environ["SAILOR_BIN_DIR"] + ":" + os.environ["PATH"], "HOME": folder, "TERM": "xterm",
                       "LC_ALL": "C.UTF-8", "COLUMNS": "200", "INPUTRC": "/dev/null"}
        answers = answers_of_fish if shell == "fish" else lambda *rest: answers_of_terminal(shell, *rest)
        for typed, expected, seen in answers(folder, environment):
            missing = missing_words(expected, seen)
            print(f"{'not ok' if missing else 'ok'} - {shell} completes '{typed}' to {', '.join(expected)}")
            if missing:
                failed = 1
                print("   saw: " + repr(seen[-600:]))
    return failed


if __name__ == "__main__":
    sys.exit(main())
