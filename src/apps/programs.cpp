#include "apps/programs.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "core/shell.hpp"

namespace sailor::apps {

namespace {

constexpr std::array known_programs{
    Program{"sailor", "plans and runs distributed training on heterogeneous Slurm clusters"},
    Program{"sailor-profile", "measures layers and links, and keeps profile stores"},
    Program{"sailor-plan",
            "finds the best way to train a model on a cluster: which devices, how to split the model over them"},
    Program{"sailor-simulate", "predicts the iteration time, the memory of every rank and the cost of a plan"},
    Program{"sailor-report", "makes one HTML page of a plan or of what a training measured"},
    Program{"sailor-submit", "submits the job that trains a model as a plan says, and prints the job's id"},
    Program{"sailor-train", "trains a model as a plan says; start one process per rank with srun or mpirun"},
    Program{"sailor-controller", "keeps a training going when nodes go and come (sailor-train --elastic)"},
    Program{"sailor-check",
            "says whether every node of an allocation is fit to train on; start one process per rank with srun"},
    Program{"sailor-launch", "gives each task of a job step its place in a plan, then runs a program"},
    Program{"sailor-data", "makes token files for sailor-train"},
    Program{"sailor-checkpoint", "looks into checkpoints, checks them, and exchanges weights with Hugging Face"},
    Program{"sailor-sweep",
            "runs every point of an experiment (planners x models x clusters x constraints) and tabulates the plans"},
};

}  // namespace

std::span<const Program> programs() { return known_programs; }

std::string purpose_of(std::string_view program) {
  for (const Program& known : known_programs)
    if (known.name == program) return std::string(known.purpose);
  fmt::print(stderr, "sailor: program '{}' is not in the list of programs\n", program);
  std::abort();
}

std::string submit_command(std::string_view plan) {
  return fmt::format("sailor-submit {} --data PREFIX --iterations N", shell_quote(plan));
}

}  // namespace sailor::apps
