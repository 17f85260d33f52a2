#!/usr/bin/env python3
"""Plans of the validation runs on GH200, and what their run files say: the parts of validate.sh that are no shell.

  validation.py plans CASES FOLDER       writes a plan.toml of each case, without zones, and prints their paths
  validation.py cases FOLDER FILE.toml   a cases file of the run files below FOLDER, the newest of each plan
"""
import pathlib
import re
import sys
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "figures"))
from toml_text import toml_value  # noqa: E402


def name_of(plan):
    """nodes32-pipelines8-stages4-batch8-global1024: unlike for all cases of a file."""
    pipelines = sum(pipeline["count"] for pipeline in plan["pipelines"])
    stages = len(plan["pipelines"][0]["stages"])
    return (f"nodes{pipelines * stages}-pipelines{pipelines}-stages{stages}-batch{plan['micro_batch']}-"
            f"global{plan['job']['global_batch']}")


def plans(cases_file, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for case in tomllib.loads(pathlib.Path(cases_file).read_text(encoding="utf-8"))["cases"]:
        plan = case["plan"]
        lines = [f"# {case['name']}", "schema_version = 1"]
        lines += [f"{key} = {toml_value(value)}" for key, value in plan.items() if key != "pipelines"]
        for pipeline in plan["pipelines"]:
            # The zone is the cloud's whose prices the authors used; the cluster has one.
            stages = [{key: value for key, value in stage.items() if key != "zone"} for stage in pipeline["stages"]]
            lines += ["[[pipelines]]", f"count = {pipeline['count']}", f"micro_batches = {pipeline['micro_batches']}",
                      f"stages = {toml_value(stages)}"]
        path = folder / f"{name_of(plan)}.toml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(path)


def cases(folder, output):
    """The newest run file of every folder with a plan: run-JOBID.h5, of a requeued job run-JOBID-N.h5."""
    folder, output = pathlib.Path(folder), pathlib.Path(output)
    lines = ["schema_version = 1", 'title = "OPT-350M on GH200, runs of sailor-train"',
             'source = "ae_scripts/clariden/validate.sh"', 'framework = "sailor"']
    found, without = 0, []
    for plan in sorted(folder.rglob("plan.toml"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)]):
        runs = sorted(plan.parent.glob("run-*.h5"), key=lambda path: path.stat().st_mtime)
        if not runs:
            without.append(plan.parent.name)
            continue
        found += 1
        lines += ["", "[[cases]]", f"name = {toml_value(plan.parent.name)}", f"run = {toml_value(str(runs[-1].resolve()))}"]
    if not found:
        sys.exit(f"validation.py: error: there is no run file below '{folder}': have the jobs ended?")
    if without:
        print(f"validation.py: warning: no run file of {', '.join(without)}", file=sys.stderr)
    output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{output}: {found} cases")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("plans", "cases"):
        sys.exit(__doc__)
    {"plans": plans, "cases": cases}[sys.argv[1]](*sys.argv[2:])
