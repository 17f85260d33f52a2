#include <gtest/gtest.h>
#include <chrono>
#include "tests/unit/baselines/homogeneous_cases.hpp"

namespace sailor::planner::baselines {
namespace {
TEST(Scratch, All) {
  for (const Baseline* b : {&amp(), &piper(), &galvatron(), &varuna()})
    for (Faults f : {Faults::kept, Faults::fixed}) {
      auto show = [&](const char* what, Problem p) {
        auto t0 = std::chrono::steady_clock::now();
        auto r = b->plan(p);
        double dt = std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
        if (!r) { printf("%s %s %d: %s\n", what, std::string(b->name()).c_str(), f == Faults::kept, r.error().message().c_str()); return; }
        int oom = 0; int err = 0;
        bool found = false;
        for (auto& pr : r->plans) {
          auto s = evaluate(pr.plan, p.inputs, p.job, f);
          if (!s) { ++err; if (err == 1) printf("   %s\n", s.error().message().c_str()); continue; }
          if (!s->fits) { ++oom; continue; }
          double thr = 1 / s->iteration_time.value();
          if (p.max_cost && s->cost > *p.max_cost) continue;
          if (p.min_throughput && thr < *p.min_throughput) continue;
          printf("%s %s %s thr %.6f est %.6f cost %.5f oom %d err %d plans %zu  %s  %.2fs\n", what, std::string(b->name()).c_str(), f == Faults::kept ? "kept" : "fixed", thr, pr.throughput.value_or(0), s->cost.value(), oom, err, r->plans.size(), describe(pr.plan).c_str(), dt);
          found = true;
          break;
        }
        if (!found) printf("%s %s %s none oom %d err %d plans %zu %.2fs\n", what, std::string(b->name()).c_str(), f == Faults::kept ? "kept" : "fixed", oom, err, r->plans.size(), dt);
        for (auto& n : r->notes) printf("      %s\n", n.c_str());
      };
      for (int n : {32, 80, 128}) show("7", problem_of({offer_of("A100-40", n)}, f));
      for (int n : {32, 80, 128}) show("8b", problem_of({offer_of("A100-40", n), offer_of("V100-16", 3 * n)}, f));
      Problem p = problem_of({offer_of("A100-40", 128), offer_of("A100-40", 128, "us-central1-b"), offer_of("V100-16", 128), offer_of("V100-16", 128, "us-central1-b")}, f);
      p.objective = Objective::cost; p.min_throughput = 0.2;
      show("11", p);
      p.objective = Objective::throughput; p.min_throughput.reset(); p.max_cost = Usd(1.2);
      show("12", p);
      show("GH", problem_of({offer_of("GH200-96", 64)}, f));
      show("RTX", problem_of({{"Titan-RTX", "us-central1-a", 32, 8}}, f));
    }
}
}  // namespace
}  // namespace sailor::planner::baselines
