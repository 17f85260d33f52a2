"""Tables, pictures and the report of the paper's figures; the scripts of ae_scripts call it.

  python3 ae_scripts/figures planners NAME --title TEXT --sweep FOLDER --output FOLDER
  python3 ae_scripts/figures scale NAME --title TEXT --sweep FOLDER --output FOLDER
  python3 ae_scripts/figures accuracy --sailor-simulate PROGRAM --cases FILE|--runs FOLDER --output FOLDER
  python3 ae_scripts/figures report --output FOLDER --version TEXT
  python3 ae_scripts/figures compare REPORT REPORT
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import accuracy  # noqa: E402
import claims  # noqa: E402
import planners  # noqa: E402
import report  # noqa: E402
import scale  # noqa: E402


def main():
    parser = argparse.ArgumentParser(prog="ae_scripts/figures", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("planners", "scale"):
        one = commands.add_parser(command, help="a figure of a sweep of sailor-sweep")
        one.add_argument("name")
        one.add_argument("--title", required=True)
        one.add_argument("--sweep", required=True, help="folder of the sweep, with NAME.csv")
    one = commands.add_parser("accuracy", help="figures 5a and 5b")
    one.add_argument("--sailor-simulate", required=True)
    source = one.add_mutually_exclusive_group(required=True)
    source.add_argument("--cases", help="a cases file")
    source.add_argument("--runs", help="a folder of the authors' run files (JSON)")
    one.add_argument("--model", default="opt-350m-sailor", help="of the run files")
    one.add_argument("--figure", help="fig5a or fig5b [both]")
    one = commands.add_parser("report", help="the page of all figures that were made")
    one.add_argument("--version", required=True)
    one = commands.add_parser("compare", help="whether two reports agree in all that was not measured")
    one.add_argument("reports", nargs=2)
    for command in commands.choices.values():
        if command.prog.split()[-1] != "compare":
            command.add_argument("--output", required=True, help="folder for what is made")
    arguments = parser.parse_args()
    try:
        return run(arguments)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        print(f"ae_scripts/figures: error: {error}", file=sys.stderr)
        return 1


def run(arguments):
    if arguments.command == "compare":
        difference = report.compare(*arguments.reports)
        if difference:
            print(f"the reports differ in {difference}")
        return 1 if difference else 0
    folder = pathlib.Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.command == "report":
        report.make(folder, arguments.version)
    elif arguments.command == "accuracy":
        accuracy.run(arguments, folder)
    else:
        maker = planners if arguments.command == "planners" else scale
        section = maker.make(arguments.name, arguments.title, arguments.sweep, folder)
        if arguments.command == "planners":
            of_figure = claims.table(folder, arguments.name)
            if of_figure.rows:
                section.tables.append(of_figure)
        section.save(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
