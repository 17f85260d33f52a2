"""One page of all sections: report.html, which needs no other file, and report.md beside the pictures."""
import html
import pathlib
import re

import claims
from sections import Section, write

ORDER = ["fig5a", "fig5b", "fig7", "fig8b", "fig10", "fig11", "fig12", "scale", "fig7-gpt-neo", "fig8b-gpt-neo", "fig10-gpt-neo",
         "fig11-gpt-neo", "fig12-gpt-neo"]

STYLE = """
body { font: 15px/1.5 "DejaVu Sans", "Segoe UI", Helvetica, Arial, sans-serif; color: #1c2430; background: #fff; margin: 0 auto;
  max-width: 1480px; padding: 1.5rem 2rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .4rem; } h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; border-bottom: 2px solid #16325c;
  padding-bottom: .25rem; }
nav { margin: 1rem 0 0; } nav a { display: inline-block; margin: 0 1rem .3rem 0; color: #16325c; }
figure { margin: 1rem 0; text-align: center; } figure img { max-width: 100%; width: 1000px; border: 1px solid #dde2e8; }
figcaption { font-size: .85rem; color: #4a5563; max-width: 1000px; margin: .3rem auto 0; }
.table { overflow-x: auto; margin: 1rem 0 1.6rem; } table { border-collapse: collapse; font-size: .76rem; min-width: 60%; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; font-size: .9rem; }
td { white-space: nowrap; } td.long { white-space: normal; min-width: 14rem; }
th, td { padding: .26rem .45rem; text-align: left; vertical-align: top; border-bottom: 1px solid #e3e7ec; }
th { background: #eef1f5; border-bottom: 2px solid #c3ccd6; position: sticky; top: 0; }
tbody tr:nth-child(even) { background: #f8f9fb; } td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.measured { color: #7a5200; font-style: italic; } td.reproduced { color: #14603a; font-weight: 600; }
td.differs { color: #8a3b00; min-width: 18rem; } td.not-run { color: #6b7280; }
@media print { body { max-width: none; padding: 0; font-size: 10px; } section { break-before: page; } nav { display: none; } th { position: static; } }
"""

INTRODUCTION = [
    "What the planners of the Sailor paper (F. Strati et al., SOSP'25, arXiv 2504.17096) answer when they are rebuilt from their "
    "descriptions, on the inputs of the paper's figures, beside what the authors' own code answers there and what this project's "
    "planner finds. Unless it says otherwise a plan is judged by the rebuilt evaluator of the artifact, on the measurements that the "
    "authors published.",
    "Planners 'as published' keep the faults of the artifact's adaptations, since its numbers rest on them; ae_scripts/README.md lists the "
    "faults, and the second table of a figure shows the planners without them. Numbers in italics were measured while this page was made "
    "(times of searches, memory of processes) and differ from run to run; no others do.",
    "'Authors' code' is github.com/eth-easl/sailor, commit 16eebd4, run unchanged on a machine of two cores.",
]


def load_sections(folder):
    found = {path.stem: path for path in pathlib.Path(folder).glob("*.json") if path.stem in ORDER}
    return [Section.load(found[name]) for name in ORDER if name in found]


def make(folder, version):
    folder = pathlib.Path(folder)
    sections = load_sections(folder)
    if not sections:
        raise SystemExit(f"{folder}: no figure was made here yet")
    verdicts = Section("claims", "The paper's claims")
    verdicts.text.append("Reproduced: the rebuilt planner of the authors, its faults kept, has the paper's number within a tenth. The column "
                         "'Sailor' is this project's planner against the same other planners.")
    verdicts.tables.append(claims.table(folder))
    missing = [name for name in ORDER if name not in {section.name for section in sections}]
    title = "Figures of the Sailor paper, and what this project makes of them"
    nav = " ".join(f'<a href="#{section.name}">{html.escape(section.title)}</a>' for section in [verdicts, *sections])
    body = "".join(section.html(folder) for section in [verdicts, *sections])
    left = f"<p>Not made: {html.escape(', '.join(missing))}.</p>" if missing else ""
    page = (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
            f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
            + "".join(f"<p>{html.escape(text)}</p>\n" for text in INTRODUCTION) + f"<p>Made by {html.escape(version)}.</p>{left}\n"
            f"<nav>{nav}</nav>\n{body}</body>\n</html>\n")
    write(folder / "report.html", page)
    text = [f"# {title}\n", *[part + "\n" for part in INTRODUCTION], f"Made by {version}.\n"]
    write(folder / "report.md", "\n".join(text + [section.markdown() for section in [verdicts, *sections]]))


def without_measurements(page):
    """The page without what differs from run to run."""
    page = re.sub(r'<figure class="measured">.*?</figure>', "", page, flags=re.DOTALL)
    return re.sub(r'<td class="measured[^"]*">[^<]*</td>', "<td></td>", page)


def compare(first, second):
    """The first line that differs, or None."""
    pages = [without_measurements(pathlib.Path(path).read_text(encoding="utf-8")).splitlines() for path in (first, second)]
    for line, (a, b) in enumerate(zip(*pages), 1):
        if a != b:
            return f"line {line}:\n  {a[:300]}\n  {b[:300]}"
    return None if len(pages[0]) == len(pages[1]) else f"{len(pages[0])} and {len(pages[1])} lines"
