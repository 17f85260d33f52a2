"""A section of the report: text, pictures and tables; kept as JSON, written as Markdown and as HTML.

What was measured (times of searches, memory of processes) is marked: two runs agree in everything else.
"""
import base64
import html
import json
import pathlib


# Columns whose cells are sentences.
LONG = ("remark", "claim", "verdict")


class Table:
    def __init__(self, title, columns, measured=()):
        """columns: names; those of `measured` differ from run to run."""
        self.title, self.columns, self.measured, self.rows = title, list(columns), sorted(measured), []

    def add(self, *cells):
        assert len(cells) == len(self.columns), (cells, self.columns)
        self.rows.append([str(cell) for cell in cells])


class Section:
    def __init__(self, name, title):
        self.name, self.title, self.text, self.pictures, self.tables = name, title, [], [], []

    def picture(self, path, caption, measured=False):
        """path: of the .svg, beside which lies the .png."""
        self.pictures.append({"file": pathlib.Path(path).name, "caption": caption, "measured": measured})

    def save(self, folder):
        folder = pathlib.Path(folder)
        content = dict(self.__dict__, tables=[table.__dict__ for table in self.tables])
        write(folder / f"{self.name}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        write(folder / f"{self.name}.md", self.markdown())

    @staticmethod
    def load(path):
        content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        section = Section(content["name"], content["title"])
        section.text, section.pictures = content["text"], content["pictures"]
        for kept in content["tables"]:
            table = Table(kept["title"], kept["columns"], kept["measured"])
            table.rows = kept["rows"]
            section.tables.append(table)
        return section

    def markdown(self):
        parts = [f"## {self.title}\n"] + [text + "\n" for text in self.text]
        parts += [f"![{p['caption']}]({p['file']})\n" for p in self.pictures]
        for table in self.tables:
            if table.title:
                parts.append(f"**{table.title}**\n")
            head = [c + (" (measured)" if c in table.measured else "") for c in table.columns]
            lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head)] +
                     [[cell.replace("|", "\\|") or " " for cell in row] for row in table.rows]]
            parts.append("\n".join(lines) + "\n")
        return "\n".join(parts)

    def html(self, folder):
        e = html.escape
        parts = [f'<section id="{e(self.name)}">\n<h2>{e(self.title)}</h2>\n'] + [f"<p>{e(text)}</p>\n" for text in self.text]
        for p in self.pictures:
            data = base64.b64encode((pathlib.Path(folder) / p["file"]).read_bytes()).decode()
            kind = ' class="measured"' if p["measured"] else ""
            parts.append(f'<figure{kind}><img alt="{e(p["caption"])}" src="data:image/svg+xml;base64,{data}">'
                         f'<figcaption>{e(p["caption"])}</figcaption></figure>\n')
        for table in self.tables:
            parts.append('<div class="table"><table>\n')
            if table.title:
                parts.append(f"<caption>{e(table.title)}</caption>\n")
            parts.append("<thead><tr>" + "".join(f"<th>{e(c)}</th>" for c in table.columns) + "</tr></thead>\n<tbody>\n")
            for row in table.rows:
                cells = []
                for column, cell in zip(table.columns, row):
                    kinds = ["measured"] if column in table.measured else []
                    kinds += ["long"] if column in LONG else []
                    kinds += ["number"] if is_number(cell) else []
                    kinds += [cell.split(",")[0].split(":")[0].replace(" ", "-")] if column == "verdict" else []
                    cells.append(f'<td class="{" ".join(kinds)}">{e(cell)}</td>' if kinds else f"<td>{e(cell)}</td>")
                parts.append("<tr>" + "".join(cells) + "</tr>\n")
            parts.append("</tbody></table></div>\n")
        return "".join(parts) + "</section>\n"


def is_number(cell):
    text = cell.removesuffix("%").removesuffix("x").strip()
    if text in ("", "-"):
        return bool(cell)
    try:
        float(text)
    except ValueError:
        return False
    return True


def write(path, text):
    """Whole or not at all."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
