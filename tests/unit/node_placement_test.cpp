#include "plan/node_placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "plan/placement.hpp"
#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace sailor::node_placement_test {

namespace {

using Words = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Stage stage(const std::string& gpu, int tensor_parallel, const std::string& zone = "") {
  Stage made;
  made.gpu = gpu;
  made.tensor_parallel = tensor_parallel;
  made.zone = zone;
  return made;
}

Plan plan_of(std::vector<Pipeline> pipelines) {
  Plan plan;
  plan.pipelines = std::move(pipelines);
  return plan;
}

Pipeline pipeline(std::vector<Stage> stages, int count = 1) {
  Pipeline made;
  made.count = count;
  made.micro_batches = 1;
  made.stages = std::move(stages);
  return made;
}

/// "gh1.0" of every rank.
std::vector<std::string> names(const std::vector<RankPlace>& places, const std::vector<PlacementNode>& nodes) {
  std::vector<std::string> text;
  for (const RankPlace& place : places)
    text.push_back(nodes[static_cast<std::size_t>(place.node)].name + "." + std::to_string(place.device));
  return text;
}

std::vector<std::string> place(const Plan& plan, const std::vector<PlacementNode>& nodes) {
  const auto places = place_on_nodes(plan, nodes);
  EXPECT_TRUE(places) << (places ? "" : places.error().message());
  return places ? names(*places, nodes) : std::vector<std::string>{};
}

std::string refusal(const Plan& plan, const std::vector<PlacementNode>& nodes) {
  const auto places = place_on_nodes(plan, nodes);
  return places ? "placed" : places.error().message();
}

}  // namespace

TEST(NodePlacement, FillsNodesInThePlansOrderAndInTheOrderOfTheirNumbers) {
  const Plan plan = plan_of({pipeline({stage("A", 2), stage("A", 2)}, 2)});
  const std::vector<PlacementNode> nodes{{.name = "n10", .gpu = "A", .devices = 4},
                                         {.name = "n9", .gpu = "A", .devices = 4}};
  EXPECT_EQ(place(plan, nodes), (Words{"n9.0", "n9.1", "n9.2", "n9.3", "n10.0", "n10.1", "n10.2", "n10.3"}));
}

TEST(NodePlacement, SeveralGroupsShareANodeAndNoneIsDivided) {
  // Groups of 3, 2, 1, 2 on nodes of 4: 3 and 1 share the first, 2 and 2 the second.
  const Plan plan = plan_of({pipeline({stage("A", 3), stage("A", 2)}), pipeline({stage("A", 1), stage("A", 2)})});
  const std::vector<PlacementNode> nodes{{.name = "x1", .gpu = "A", .devices = 4},
                                         {.name = "x2", .gpu = "A", .devices = 4}};
  EXPECT_EQ(place(plan, nodes), (Words{"x1.0", "x1.1", "x1.2", "x2.0", "x2.1", "x1.3", "x2.2", "x2.3"}));
}

TEST(NodePlacement, GroupsFindTheNodesThatHoldExactlyThem) {
  // First fit would put the group of 3 on the node of 4, and leave none for the group of 4.
  const Plan plan = plan_of({pipeline({stage("A", 3), stage("A", 4), stage("A", 2)})});
  const std::vector<PlacementNode> nodes{{.name = "two", .gpu = "A", .devices = 2},
                                         {.name = "four", .gpu = "A", .devices = 4},
                                         {.name = "three", .gpu = "A", .devices = 3}};
  EXPECT_EQ(place(plan, nodes),
            (Words{"three.0", "three.1", "three.2", "four.0", "four.1", "four.2", "four.3", "two.0", "two.1"}));
}

TEST(NodePlacement, FindsTheOneWayToFillNodes) {
  // Groups of 3, 3, 4, 3: 3 and 3 on the node of 6, 4 and 3 on the node of 7. First fit begins with 3 and 3 on the node
  // of 7, best fit with 4 on the node of 6.
  const Plan plan = plan_of({pipeline({stage("A", 3), stage("A", 3), stage("A", 4), stage("A", 3)})});
  const std::vector<PlacementNode> nodes{{.name = "seven", .gpu = "A", .devices = 7},
                                         {.name = "six", .gpu = "A", .devices = 6}};
  const auto places = place_on_nodes(plan, nodes);
  ASSERT_TRUE(places) << places.error().message();
  std::vector<int> ranks_on(2, 0);
  for (const RankPlace& place : *places) ++ranks_on[static_cast<std::size_t>(place.node)];
  EXPECT_EQ(ranks_on, (std::vector<int>{7, 6}));
}

TEST(NodePlacement, APipelineStaysOnOneSwitchWhereThatHasRoom) {
  // s1 has one free node, s2 two: the pipeline of two nodes goes to s2, the pipeline of one node to s1.
  const Plan plan = plan_of({pipeline({stage("A", 4), stage("A", 4)}), pipeline({stage("A", 4)})});
  const std::vector<PlacementNode> nodes{{.name = "n1", .gpu = "A", .devices = 4, .leaf_switch = "s1"},
                                         {.name = "n2", .gpu = "A", .devices = 4, .leaf_switch = "s2"},
                                         {.name = "n3", .gpu = "A", .devices = 4, .leaf_switch = "s2"}};
  EXPECT_EQ(place(plan, nodes),
            (Words{"n2.0", "n2.1", "n2.2", "n2.3", "n3.0", "n3.1", "n3.2", "n3.3", "n1.0", "n1.1", "n1.2", "n1.3"}));
}

TEST(NodePlacement, AllNodesAreFromOneSwitchWhereThatHasRoom) {
  // Data-parallel groups cross no switch either: s2 holds both pipelines, and has fewer nodes to spare than s3.
  const Plan plan = plan_of({pipeline({stage("A", 4)}, 2)});
  std::vector<PlacementNode> nodes;
  for (const char* name : {"1.1", "2.1", "2.2", "3.1", "3.2", "3.3"})
    nodes.push_back({.name = std::string("n") + name, .gpu = "A", .devices = 4, .leaf_switch = {'s', name[0]}});
  EXPECT_EQ(place(plan, nodes),
            (Words{"n2.1.0", "n2.1.1", "n2.1.2", "n2.1.3", "n2.2.0", "n2.2.1", "n2.2.2", "n2.2.3"}));
}

TEST(NodePlacement, ReplicasOfAStageAreAtOneSwitchWhereThePlanSaysSo) {
  Plan plan = plan_of({pipeline({stage("A", 1), stage("A", 1)}, 2)});
  std::vector<PlacementNode> nodes;
  for (const char* name : {"1a", "1b", "2a", "2b"})
    nodes.push_back({.name = name, .gpu = "A", .devices = 1, .leaf_switch = {'s', name[0]}});
  EXPECT_EQ(place(plan, nodes), (Words{"1a.0", "1b.0", "2a.0", "2b.0"}));
  plan.keep_together = KeepTogether::replicas;
  EXPECT_EQ(place(plan, nodes), (Words{"1a.0", "2a.0", "1b.0", "2b.0"}));
}

TEST(NodePlacement, StagesOnOtherDevicesAreTakenFromTheSameSwitch) {
  const Plan plan = plan_of({pipeline({stage("A", 2), stage("B", 2)}, 2)});
  std::vector<PlacementNode> nodes;
  for (const char* name : {"a1", "a2"})
    nodes.push_back({.name = name, .gpu = "A", .devices = 2, .leaf_switch = std::string("s") + name[1]});
  for (const char* name : {"b1", "b2"})  // numbered the other way round
    nodes.push_back({.name = name, .gpu = "B", .devices = 2, .leaf_switch = name[1] == '1' ? "s2" : "s1"});
  EXPECT_EQ(place(plan, nodes), (Words{"a1.0", "a1.1", "b2.0", "b2.1", "a2.0", "a2.1", "b1.0", "b1.1"}));
}

TEST(NodePlacement, ZonesAreKeptApart) {
  const Plan plan = plan_of({pipeline({stage("A", 1, "east")}), pipeline({stage("A", 1, "west")})});
  const std::vector<PlacementNode> nodes{{.name = "n1", .gpu = "A", .zones = {"west", "all"}, .devices = 1},
                                         {.name = "n2", .gpu = "A", .zones = {"east", "all"}, .devices = 1}};
  EXPECT_EQ(place(plan, nodes), (Words{"n2.0", "n1.0"}));
}

TEST(NodePlacement, ANodeThatOnlyOneKindCanUseIsTakenFirst) {
  const Plan plan = plan_of({pipeline({stage("A", 1, "all")}), pipeline({stage("A", 1, "west")})});
  const std::vector<PlacementNode> nodes{{.name = "n1", .gpu = "A", .zones = {"west", "all"}, .devices = 1},
                                         {.name = "n2", .gpu = "A", .zones = {"all"}, .devices = 1}};
  EXPECT_EQ(place(plan, nodes), (Words{"n2.0", "n1.0"}));
}

TEST(NodePlacement, SaysWhatIsMissing) {
  const Plan plan = plan_of({pipeline({stage("A", 4, "east"), stage("A", 4, "east")})});
  EXPECT_PRED2(contains, refusal(plan, {}), "the plan needs 8 A in 'east', there is none; take more nodes");
  const std::vector<PlacementNode> one{{.name = "n1", .gpu = "A", .zones = {"east"}, .devices = 4}};
  EXPECT_PRED2(contains, refusal(plan, one), "the plan needs 8 A in 'east', there are 4 (1 node with 4)");
  const std::vector<PlacementNode> small{{.name = "n1", .gpu = "A", .zones = {"east"}, .devices = 3},
                                         {.name = "n2", .gpu = "A", .zones = {"east"}, .devices = 3},
                                         {.name = "n3", .gpu = "A", .zones = {"east"}, .devices = 2}};
  EXPECT_PRED2(contains, refusal(plan, small),
               "a tensor-parallel group, of up to 4, stays on one, and there are 8 "
               "(2 nodes with 3, 1 node with 2)");
}

TEST(NaturalLess, ComparesNumbersByTheirValue) {
  std::vector<std::string> sorted{"n10", "n9", "n1", "n01", "a", "n", "n2x10", "n2x9", "m100"};
  std::sort(sorted.begin(), sorted.end(), natural_less);
  EXPECT_EQ(sorted, (Words{"a", "m100", "n", "n01", "n1", "n2x9", "n2x10", "n9", "n10"}));
}

#ifdef SAILOR_HAVE_RAPIDCHECK

namespace {

struct World {
  Plan plan;
  std::vector<PlacementNode> nodes;
};

World random_world() {
  World world;
  const auto number = [](int low, int high) { return *rc::gen::inRange(low, high + 1); };
  for (int i = number(1, 4); i > 0; --i) {
    Pipeline made = pipeline({}, number(1, 3));
    for (int j = number(1, 4); j > 0; --j)
      made.stages.push_back(stage(number(0, 1) ? "A" : "B", number(1, 4), number(0, 1) ? "east" : "west"));
    world.plan.pipelines.push_back(std::move(made));
  }
  // As many nodes of each kind as the simulator assumes, and some more.
  const int devices = number(4, 6);
  int name = 0;
  for (const auto& [gpu, zone] : kinds_of(world.plan)) {
    const auto groups = static_cast<int>(rank_roles(world.plan).size());
    for (int i = 0; i < groups; ++i)
      world.nodes.push_back({.name = "n" + std::to_string(++name),
                             .gpu = gpu,
                             .zones = {zone},
                             .devices = devices,
                             .leaf_switch = "s" + std::to_string(number(0, 3))});
  }
  return world;
}

}  // namespace

RC_GTEST_PROP(NodePlacement, EveryRankHasADeviceOfItsOwnOfItsKindAndGroupsStayTogether, ()) {
  const World world = random_world();
  const auto places = place_on_nodes(world.plan, world.nodes);
  RC_ASSERT(places.has_value());
  const auto roles = rank_roles(world.plan);
  RC_ASSERT(places->size() == roles.size());
  std::set<std::pair<int, int>> taken;
  std::map<std::pair<int, int>, int> node_of_group;  // pipeline, stage
  for (const RankRole& role : roles) {
    const RankPlace& place = (*places)[static_cast<std::size_t>(role.rank)];
    const PlacementNode& node = world.nodes.at(static_cast<std::size_t>(place.node));
    const Stage& stage = stage_of(world.plan, role);
    RC_ASSERT(node.gpu == stage.gpu && node.zones.front() == stage.zone);
    RC_ASSERT(place.device >= 0 && place.device < node.devices);
    RC_ASSERT(taken.emplace(place.node, place.device).second);
    const auto [group, first] = node_of_group.emplace(std::pair(role.pipeline, role.stage), place.node);
    RC_ASSERT(first || group->second == place.node);
  }
}

RC_GTEST_PROP(NodePlacement, TheOrderOfTheNodesDoesNotMatter, ()) {
  const World world = random_world();
  std::vector<PlacementNode> mixed = world.nodes;
  for (std::size_t i = mixed.size(); i > 1; --i)
    std::swap(mixed[i - 1], mixed[static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(i)))]);
  const auto places = place_on_nodes(world.plan, world.nodes);
  const auto again = place_on_nodes(world.plan, mixed);
  RC_ASSERT(places.has_value() && again.has_value());
  RC_ASSERT(names(*places, world.nodes) == names(*again, mixed));
}

RC_GTEST_PROP(NodePlacement, PutsTogetherWhatTheSimulatorAssumesTogether, ()) {
  const World world = random_world();
  NodeSizes sizes;
  for (const PlacementNode& node : world.nodes) sizes.add(node.gpu, node.zones.front(), node.devices, 1);
  const auto assumed = nodes_of_ranks(world.plan, sizes);
  const auto places = place_on_nodes(world.plan, world.nodes);
  RC_ASSERT(assumed.has_value() && places.has_value());
  std::map<int, int> real;  // node by assumed node
  for (std::size_t rank = 0; rank < places->size(); ++rank)
    RC_ASSERT(real.emplace((*assumed)[rank], (*places)[rank].node).first->second == (*places)[rank].node);
  std::set<int> different;
  for (const auto& [abstract, node] : real) different.insert(node);
  RC_ASSERT(different.size() == real.size());
}

#endif

}  // namespace sailor::node_placement_test
