#!/usr/bin/env python3
"""Stands for sailor-plan in tests of sailor-sweep and of the figures' scripts.

--planner crash, slow (FAKE_SLOW_S seconds, 30 by default), none, garbage and counted (adds a line to FAKE_COUNT_FILE) do
what they say; another planner answers what the authors' own code answered on the cluster of that name
(ae_scripts/data/authors_planners.csv); without --planner the answer is a constant. Every call with FAKE_LOG set adds its
arguments to that file.
"""
import csv
import json
import os
import pathlib
import re
import signal
import sys
import time

DATA = pathlib.Path(__file__).resolve().parents[2] / "ae_scripts/data/authors_planners.csv"
TITLES = {"varuna": "Varuna", "amp": "AMP", "piper": "Piper", "galvatron": "Galvatron", "aceso": "Aceso", "flashflex": "FlashFlex",
          "metis": "Metis", "dtfm": "DTFM", "atlas": "Atlas", "artifact-sailor": "Sailor (authors)"}


def option(name, otherwise=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else otherwise


def answer(planner, throughput, cost, out_of_memory, gpus):
    score = {"iteration_time_s": 1 / throughput, "throughput_iterations_per_s": throughput, "cost_usd_per_iteration": cost,
             "egress_cost_usd_per_iteration": 0.0, "fits": True, "peak_memory_bytes": 1.5e10} if throughput else None
    plan = dict(score or {}, plan=None, list=[], description="a fake plan", gpus=gpus,
                expected={"throughput_iterations_per_s": throughput * 1.1, "cost_usd_per_iteration": None}, artifact=score,
                simulator=dict(score or {}, is_bound=False))
    return {"planner": planner, "faults": option("--planner-faults", "fixed"), "judge": option("--judge", "simulator"),
            "search_time_s": 0.25, "proposed": out_of_memory + 1, "did_not_fit": out_of_memory, "rejected_by_limits": 0,
            "notes": ["a note, with \"quotes\""], "plans": [plan] if throughput else []}


def main():
    if "FAKE_LOG" in os.environ:
        with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
            log.write(" ".join(sys.argv[1:]) + "\n")
    planner = option("--planner")
    cluster = pathlib.Path(option("--cluster")).read_text(encoding="utf-8")
    name = re.search(r'^name = "(.*)"$', cluster, re.MULTILINE).group(1)
    gpus = {"A100-40": 8, "V100-16": 4}
    if planner == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if planner == "slow":
        time.sleep(float(os.environ.get("FAKE_SLOW_S", "30")))
    if planner == "counted":
        with open(os.environ["FAKE_COUNT_FILE"], "a", encoding="utf-8") as file:
            file.write(name + "\n")
    if planner == "garbage":
        print("no JSON")
        return 0
    if planner == "none":
        print("sailor-plan: error: no plan fits into memory", file=sys.stderr)
        print(json.dumps(answer(planner, 0, 0, 3, {})))
        return 3
    if planner == "nonsense":
        print("sailor-plan: error: there is no planner 'nonsense'; one of: amp", file=sys.stderr)
        return 1
    with open(DATA, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    figure = "fig11" if option("--objective") == "cost" else "fig12" if "--max-cost" in sys.argv else None
    for row in rows:
        if row["planner"] == TITLES.get(planner, "Sailor (authors)") and row["cluster"] == name and figure in (None, row["figure"]):
            throughput = float(row["throughput_iterations_per_s"])
            better = 1.0 if planner else 1.05
            print(json.dumps(answer(planner, throughput * better, float(row["cost_usd_per_iteration"] or 0),
                                    int(row["out_of_memory"]), gpus)))
            return 0 if throughput else 3
    print(json.dumps(answer(planner, 0.5, 0.25, 0, gpus)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
