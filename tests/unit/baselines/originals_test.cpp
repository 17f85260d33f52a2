// The authors' own planner, Atlas and Oobleck on the published inputs: plans and estimates of the original code
// (figures 7, 8b, 10, 11, 12 of the Sailor paper, OPT-350, batch 1024), and what fixed faults change.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "planner/baselines/baseline.hpp"
#include "tests/fakes/published_profiles.hpp"

namespace sailor::planner::baselines {
namespace {

using testing::published;
using testing::published_gpus;

const Inputs& inputs() {
  static const Model model = testing::published_model("OPT-350");
  static const Inputs inputs =
      Inputs::build(testing::published_job("OPT-350", 1024), model, published(), published_gpus()).value();
  return inputs;
}

Problem problem_of(std::vector<Offer> offers, Faults faults = Faults::kept) {
  for (Offer& offer : offers) offer.gpus_per_node = 4;
  return {.inputs = inputs(), .job = testing::published_job("OPT-350", 1024), .offers = std::move(offers), .faults = faults};
}

const std::string c1 = "us-central1-";

std::vector<Offer> figure_8b(int a100s) { return {{"A100-40", c1 + "a", a100s}, {"V100-16", c1 + "a", 3 * a100s}}; }
std::vector<Offer> figure_10(int each) {
  std::vector<Offer> offers;
  for (const char* zone : {"us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west1-b"})
    offers.push_back({"A100-40", zone, each});
  return offers;
}
std::vector<Offer> figure_11() {
  std::vector<Offer> offers;
  for (const char* gpu : {"A100-40", "V100-16"})
    for (const char* zone : {"us-central1-a", "us-central1-b"}) offers.push_back({gpu, zone, 128});
  return offers;
}

TEST(Originals, Scratch) {
  struct Case { std::string name; Problem problem; };
  std::vector<Case> cases;
  for (Faults faults : {Faults::kept, Faults::fixed}) {
    for (int n : {32, 80, 128}) cases.push_back({fmt::format("7/{}", n), problem_of({{"A100-40", c1 + "a", n}}, faults)});
    for (int n : {32, 80, 128}) cases.push_back({fmt::format("8b/{}", n), problem_of(figure_8b(n), faults)});
    for (int n : {32, 80, 128}) cases.push_back({fmt::format("10/{}", n), problem_of(figure_10(n), faults)});
    cases.push_back({"11", problem_of(figure_11(), faults)});
    cases.back().problem.objective = Objective::cost;
    cases.back().problem.min_throughput = 0.2;
    cases.push_back({"12", problem_of(figure_11(), faults)});
    cases.back().problem.max_cost = Usd(1.2);
    cases.push_back({"free12", problem_of(figure_11(), faults)});
  }
  const auto zones = [&](std::vector<std::string> gpus, std::vector<std::string> zs, int n) { std::vector<Offer> o; for (auto& z : zs) for (auto& g : gpus) o.push_back({g, z, n}); return o; };
  const std::string a = c1 + "a", b = c1 + "b", c_ = c1 + "c", f = c1 + "f", w = "us-west1-b", A = "A100-40", V = "V100-16", G = "GH200-96";
  for (Faults faults : {Faults::kept, Faults::fixed}) {
    cases.push_back({"p memo .18455", problem_of(zones({A}, {a, w}, 32), faults)});
    cases.push_back({"p 16each .08228", problem_of(zones({A, V}, {a}, 16), faults)});
    cases.push_back({"p 64each .24861", problem_of(zones({A, V}, {a}, 64), faults)});
    cases.push_back({"p 256each .64584", problem_of(zones({A, V}, {a}, 256), faults)});
    cases.push_back({"p homo1024 1.42846", problem_of(zones({A}, {a}, 1024), faults)});
    cases.push_back({"p zones2 .24656", problem_of(zones({A, V}, {a, b}, 32), faults)});
    cases.push_back({"p zones2A .69363", problem_of(zones({A}, {a, b}, 128), faults)});
    cases.push_back({"p zones3A .85446", problem_of(zones({A}, {a, b, c_}, 128), faults)});
    cases.push_back({"p zones4 .40582", problem_of(zones({A, V}, {a, b, c_, f}, 32), faults)});
    cases.push_back({"p budget .4 .41528", problem_of(figure_11(), faults)});
    cases.back().problem.max_cost = Usd(0.4);
    cases.push_back({"p budget .3 .23499", problem_of(figure_11(), faults)});
    cases.back().problem.max_cost = Usd(0.3);
  }
  for (const Case& c : cases) {
    if (const char* only = std::getenv("ONLY"); only != nullptr && c.name.substr(0, std::string(only).size()) != only) continue;
    const auto t0 = std::chrono::steady_clock::now();
    const Baseline& planner = std::getenv("PLANNER") != nullptr ? *find_baseline(std::getenv("PLANNER")).value() : artifact_sailor();
    const auto found = planner.plan(c.problem);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
    if (!found) { fmt::print("{}: {}\n", c.name, found.error().message()); continue; }
    const auto& best = found->plans.front();
    const auto score = evaluate(best.plan, inputs(), c.problem.job, c.problem.faults);
    std::map<std::string, int> by;
    fmt::print("{} {} est {:.9f} cost {:.5f} | thr {:.6f} usd {:.5f} fits {} | {} plans {:.2f} s | {}\n", c.name, c.problem.faults == Faults::kept ? "kept" : "fixed", *best.throughput, best.cost->value(), 1.0 / score->iteration_time.value(), score->cost.value(), score->fits, found->plans.size(), s, describe(best.plan)); std::fflush(stdout);
  }
}

}  // namespace
}  // namespace sailor::planner::baselines
