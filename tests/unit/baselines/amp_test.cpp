// AMP against runs of the artifact (BASELINES.md, annexes A.2 and A.3).
#include <gtest/gtest.h>

#include "tests/unit/baselines/homogeneous_cases.hpp"

namespace sailor::planner::baselines {
namespace {

TEST(Scratch, Amp) {
  for (const Baseline* b : {&varuna()}) {
    for (int n : {32, 80, 128}) {
      auto r = b->plan(problem_of({offer_of("A100-40", n)}, Faults::kept));
      ASSERT_TRUE(r) << r.error().message();
      for (size_t i = 0; i < 3 && i < r->plans.size(); ++i) {
        printf("%d %.6f %zu:", n, 1/r->plans[i].throughput.value_or(0), r->plans.size());
        for (auto& s : r->plans[i].plan.pipelines[0].stages)
          printf(" %d D%zu T%d b%d", s.layers.last - s.layers.first, s.replicas.size(), s.replicas[0].tensor_parallel,
                 r->plans[i].plan.micro_batch);
        puts("");
      }
    }
    for (auto& v : validation_runs()) {
      Problem p = problem_of({}, Faults::kept, v.batch);
      auto e = b->estimate(validation_plan(v), p);
      ASSERT_TRUE(e) << e.error().message();
      printf("%.9f %.3f\n", e->iteration_time.value_or(Seconds()).value(), e->peak_memory ? e->peak_memory->value() / 1e9 : 0.0);
    }
  }
  for (auto [a, v] : std::vector<std::pair<int, int>>{{32, 96}, {80, 240}, {128, 384}}) {
    auto r = amp().plan(problem_of({offer_of("A100-40", a), offer_of("V100-16", v)}, Faults::kept));
    ASSERT_TRUE(r) << r.error().message();
    for (size_t i = 0; i < 6 && i < r->plans.size(); ++i) {
      auto& s = r->plans[i].plan.pipelines[0].stages;
      printf("%d %.6f %zu: P%zu D%zu T%d b%d\n", a, r->plans[i].throughput.value_or(0), r->plans.size(), s.size(),
             s[0].replicas.size(), s[0].replicas[0].tensor_parallel, r->plans[i].plan.micro_batch);
    }
  }
}

}  // namespace
}  // namespace sailor::planner::baselines
