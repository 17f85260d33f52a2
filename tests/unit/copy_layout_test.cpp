// Assignment of state copies to ranks.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "runtime/copy_layout.hpp"
#include "trainer_runs.hpp"

namespace sailor::runtime::test::copy_layout_test {
namespace {

Plan two_stages(int pipelines = 1) { return plan_of({{12 / (2 * pipelines), 2, {{{{0, 3}}}, {{{3, 6}}}}, pipelines}}); }

CopyLayout layout_of(const Plan& plan, const Model& model, const std::vector<std::string>& hosts) {
  return {ParameterMap(plan, model), hosts};
}

/// From whom to whom.
std::vector<std::pair<int, int>> ends_of(const CopyLayout& layout) {
  std::vector<std::pair<int, int>> ends;
  for (const CopyLayout::Copy& copy : layout.copies()) ends.emplace_back(copy.owner, copy.keeper);
  return ends;
}

TEST(CopyLayout, ARankOfTheNextHostKeepsWhatOneHostAloneSteps) {
  using Ends = std::vector<std::pair<int, int>>;
  const Model model = deep(gpt_model());
  EXPECT_EQ(ends_of(layout_of(two_stages(), model, {"a", "b"})), (Ends{{0, 1}, {1, 0}}));
  // On one host a process can be lost alone.
  EXPECT_EQ(ends_of(layout_of(two_stages(), model, {"a", "a"})), (Ends{{0, 1}, {1, 0}}));
  // Replicas on two hosts, or in two processes of one: nothing.
  EXPECT_EQ(ends_of(layout_of(two_stages(2), model, {"a", "a", "b", "b"})), Ends{});
  EXPECT_EQ(ends_of(layout_of(two_stages(2), model, {"a", "a", "a", "a"})), Ends{});
  // Both replicas of a stage are lost with their host: one of them sends.
  EXPECT_EQ(ends_of(layout_of(two_stages(2), model, {"a", "b", "a", "b"})), (Ends{{0, 1}, {1, 0}}));
  // The tied embedding is on the first and the last stage, hence safe; a host's ranks are spread over those of the
  // next.
  EXPECT_EQ(ends_of(layout_of(plan_of({{3, 4, {{{{0, 6}}, 4}}}}), model, {"a", "a", "b", "b"})),
            (Ends{{0, 2}, {1, 3}, {2, 0}, {3, 1}}));
  EXPECT_EQ(ends_of(layout_of(plan_of({{3, 4, {{{{0, 6}}, 4}}}}), model, {"a", "a", "a", "b"})),
            (Ends{{0, 3}, {1, 3}, {2, 3}, {3, 0}}));
  EXPECT_EQ(ends_of(layout_of(plan_of({{12, 1, {{{{0, 6}}}}}}), model, {"a"})), Ends{});
}

TEST(CopyLayout, EveryElementIsSteppedOnTwoHostsOrCopiedOnceToAnotherOne) {
  std::mt19937 random(5);
  /// Of an element.
  struct Holders {
    std::uint32_t steppers = 0;  // bits of hosts
    std::uint32_t keepers = 0;
    int copies = 0;
  };
  for (const Model& model : {deep(gpt_model()), deep(llama_model()), deep(experts_model())})
    for (const auto& [name, plan] :
         model.experts.count > 0 ? expert_divisions(model.layers()) : divisions(model.layers())) {
      SCOPED_TRACE(fmt::format("{}, {}", model.name, name));
      if (plan.ranks() == 1) continue;
      std::vector<int> numbers;
      for (int rank = 0; rank < plan.ranks(); ++rank) numbers.push_back(static_cast<int>(random() % 3));
      std::vector<std::string> hosts;
      for (const int number : numbers) hosts.push_back(fmt::format("node{}", number));
      // On one host every rank counts for itself.
      if (std::set<int>(numbers.begin(), numbers.end()).size() == 1) std::iota(numbers.begin(), numbers.end(), 0);
      const ParameterMap map(plan, model);
      std::map<ParameterKey, std::vector<Holders>> all;
      for (const Parameter& parameter : map.model_parameters())
        all[key_of(parameter)].resize(static_cast<std::size_t>(parameter.whole_elements()));
      const auto visit = [&](const StatePart& part, const auto& use) {
        for (std::int64_t i = part.whole.first; i < part.whole.last; ++i)
          use(all.at(part.key).at(static_cast<std::size_t>(i)));
      };
      const auto bit = [&](int rank) { return 1U << numbers[static_cast<std::size_t>(rank)]; };
      const auto groups = map.groups();
      for (int rank = 0; rank < plan.ranks(); ++rank)
        for (const StatePart& part : stepped_parts(map, groups, rank))
          visit(part, [&](Holders& holders) { holders.steppers |= bit(rank); });
      const CopyLayout layout(map, hosts);
      for (const CopyLayout::Copy& copy : layout.copies())
        for (const StatePart& part : copy.parts)
          visit(part, [&](Holders& holders) {
            EXPECT_EQ(holders.steppers, bit(copy.owner));
            holders.keepers |= bit(copy.keeper);
            ++holders.copies;
          });
      for (const auto& [key, elements] : all)
        for (const Holders& holders : elements) {
          ASSERT_NE(holders.steppers, 0U);
          ASSERT_EQ(holders.copies, std::has_single_bit(holders.steppers) ? 1 : 0);
          ASSERT_EQ(holders.steppers & holders.keepers, 0U);
        }
    }
}

}  // namespace
}  // namespace sailor::runtime::test::copy_layout_test
