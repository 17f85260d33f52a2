// The controller of an elastic training without its program: plans for other devices, assignment of ranks, files in its
// folder, and ranks that hang.
#include "elastic/controller.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "core/files.hpp"
#include "elastic/adapted_plan.hpp"
#include "elastic/folder.hpp"
#include "elastic/slow_ranks.hpp"
#include "elastic/time_account.hpp"
#include "runtime/sockets/member.hpp"

namespace sailor::elastic::elastic_test {
namespace {

namespace fs = std::filesystem;

Stage stage(int first, int last, int tensor_parallel = 1, const std::string& gpu = "A100-40",
            const std::string& zone = "") {
  return {.layers = {first, last}, .gpu = gpu, .tensor_parallel = tensor_parallel, .zone = zone};
}

Plan plan_of(std::vector<Pipeline> pipelines, int micro_batch = 2) {
  Plan plan;
  plan.job = {.model = "tiny-gpt", .global_batch = 0, .sequence_length = 64};
  plan.micro_batch = micro_batch;
  plan.pipelines = std::move(pipelines);
  for (const Pipeline& pipeline : plan.pipelines)
    plan.job.global_batch += pipeline.count * pipeline.micro_batches * plan.micro_batch_of(pipeline);
  return plan;
}

std::vector<MemberFacts> members_on(const std::vector<std::tuple<std::string, int, std::string>>& hosts) {
  std::vector<MemberFacts> members;
  for (const auto& [host, count, gpu] : hosts)
    for (int i = 0; i < count; ++i) members.push_back({.host = host, .gpu = gpu, .data = ""});
  return members;
}

int batch_of(const Plan& plan) {
  int batch = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    batch += pipeline.count * pipeline.micro_batches * plan.micro_batch_of(pipeline);
  return batch;
}

TEST(AdaptedPlan, KeepsTheGlobalBatchForAnyNumberOfDevices) {
  std::vector<Plan> plans{
      plan_of({{.count = 4, .micro_batches = 6, .stages = {stage(0, 3), stage(3, 6)}}}),
      plan_of({{.count = 1, .micro_batches = 8, .stages = {stage(0, 3, 2), stage(3, 6, 2)}},
               {.count = 2, .micro_batches = 3, .stages = {stage(0, 6)}}}),
      plan_of({{.count = 1, .micro_batches = 4, .micro_batch = 4, .stages = {stage(0, 3), stage(3, 6)}},
               {.count = 1, .micro_batches = 4, .micro_batch = 2, .stages = {stage(0, 6)}}}),
      plan_of({{.count = 4, .micro_batches = 6, .stages = {stage(0, 3), stage(3, 6)}}}),
      plan_of({{.count = 4, .micro_batches = 6, .stages = {stage(0, 6)}},
               {.count = 2, .micro_batches = 3, .stages = {stage(0, 3), stage(3, 6)}}}),
  };
  for (std::size_t i = plans.size() - 2; i < plans.size(); ++i) plans[i].expert_parallel = 2;
  plans[0].optimizer_sharding = OptimizerSharding::zero1;
  plans[0].sharding_degree = 4;  // all replicas, of which there will be others
  int made = 0;
  for (const Plan& plan : plans)
    for (int devices = 1; devices <= 12; ++devices) {
      const auto members = members_on({{"n0", std::min(devices, 4), "A100-40"},
                                       {"n1", std::clamp(devices - 4, 0, 4), "A100-40"},
                                       {"n2", std::clamp(devices - 8, 0, 4), "A100-40"}});
      const auto adapted = adapt_plan(plan, members);
      if (!adapted) {
        EXPECT_EQ(adapted.error().code, ErrorCode::infeasible);
        continue;
      }
      ++made;
      EXPECT_EQ(batch_of(*adapted), plan.job.global_batch) << devices;
      EXPECT_TRUE(check_plan(*adapted)) << plan_to_toml(*adapted);
      EXPECT_LE(adapted->ranks(), devices);
      EXPECT_TRUE(assign_ranks(*adapted, members));
      for (const Pipeline& pipeline : adapted->pipelines) EXPECT_GE(pipeline.micro_batches, 1);
    }
  EXPECT_GE(made, 30);
}

TEST(AdaptedPlan, SaysWhatIsMissing) {
  const auto adapted = adapt_plan(plan_of({{.count = 1, .micro_batches = 4, .stages = {stage(0, 3), stage(3, 6)}}}),
                                  members_on({{"n0", 1, "A100-40"}}));
  ASSERT_FALSE(adapted);
  EXPECT_EQ(adapted.error().message(),
            "no pipeline of the plan finds its devices among 1 x (1 A100-40); with --profile the controller plans anew "
            "for any devices");
  Plan experts = plan_of({{.count = 4, .micro_batches = 4, .stages = {stage(0, 6)}}});
  experts.expert_parallel = 4;
  const auto too_few = adapt_plan(experts, members_on({{"n0", 3, "A100-40"}}));
  ASSERT_FALSE(too_few);
  EXPECT_EQ(
      too_few.error().message(),
      "4 pipelines of the plan divide experts among them, and 1 x (3 A100-40) are too few devices for all of them; "
      "with --profile the controller plans anew for any devices");
}

TEST(Roles, WantedRanksAreGivenWhereTheyFit) {
  const Plan plan = plan_of({{.count = 1, .micro_batches = 4, .stages = {stage(0, 3), stage(3, 6, 1, "V100-16")}}});
  auto members = members_on({{"n0", 1, "V100-16"}, {"n1", 1, "A100-40"}, {"n2", 1, "A100-40"}});
  members[0].wanted_rank = 1;
  members[2].wanted_rank = 0;
  const auto order = assign_ranks(plan, members);
  ASSERT_TRUE(order) << order.error().message();
  EXPECT_EQ(*order, (std::vector<std::size_t>{2, 0, 1}));
  members[0].wanted_rank = 0;  // a V100 where the plan has an A100: its place is found by its type
  const auto found = assign_ranks(plan, members);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ((*found)[1], 0u);
}

TEST(Roles, TensorParallelGroupsStayOnOneHost) {
  const Plan plan = plan_of({{.count = 2, .micro_batches = 4, .stages = {stage(0, 6, 2)}}});
  const auto members = members_on({{"n0", 1, "A100-40"}, {"n1", 2, "A100-40"}, {"n2", 3, "A100-40"}});
  const auto order = assign_ranks(plan, members);
  ASSERT_TRUE(order) << order.error().message();
  EXPECT_EQ(members[(*order)[0]].host, members[(*order)[1]].host);
  EXPECT_EQ(members[(*order)[2]].host, members[(*order)[3]].host);
  EXPECT_FALSE(assign_ranks(plan, members_on({{"n0", 1, "A100-40"}, {"n1", 3, "A100-40"}})));
}

// Two pipelines of two stages, ranks 0 and 2 with the same layers: rank 2 takes 1.5 times as long. Its next stages take
// longer, too, but have other layers; the second pipeline of other micro-batches is compared by sequences.
TEST(SlowRanks, AreNamedOnceAgainstThoseWithTheSameLayers) {
  const Plan plan = plan_of({{.count = 1, .micro_batches = 4, .stages = {stage(0, 2), stage(2, 6)}},
                             {.count = 1, .micro_batches = 8, .stages = {stage(0, 2), stage(2, 6)}}});
  const std::map<int, Seconds> busy{{0, Seconds(1.0)}, {1, Seconds(3.0)},  {2, Seconds(3.0)},
                                    {3, Seconds(6.0)}, {-1, Seconds(9.0)}, {7, Seconds(9.0)}};
  SlowRanks ranks;
  for (int look = 1; look < 5; ++look) EXPECT_TRUE(ranks.look(plan, busy).empty()) << look;
  const std::vector<SlowRank> slow = ranks.look(plan, busy);
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].rank, 2);
  EXPECT_DOUBLE_EQ(slow[0].times_its_peers, 1.5);
  EXPECT_TRUE(ranks.look(plan, busy).empty());  // named already
  ranks.begin_epoch();
  auto quicker = busy;
  quicker[2] = Seconds(2.0);
  for (int look = 0; look < 4; ++look) EXPECT_TRUE(ranks.look(plan, busy).empty());
  EXPECT_TRUE(ranks.look(plan, quicker).empty());  // it was slow for a while only
  EXPECT_TRUE(ranks.look(plan, busy).empty());
}

TEST(ExpectedLosses, AreOfEachKindOfHostAndOfProcesses) {
  const auto members = members_on({{"n0", 2, "A100-40"}, {"n1", 2, "A100-40"}, {"n2", 1, "V100-16"}});
  const auto devices = [](const std::vector<std::vector<MemberFacts>>& losses) {
    std::vector<std::string> texts;
    for (const auto& left : losses) texts.push_back(describe_devices(left));
    return texts;
  };
  const std::vector<std::string> all = devices(devices_after_losses(members, 1, 8));
  ASSERT_EQ(all.size(), 3U);  // n0 as n1; n2, whose only process it is; one of n0 as one of n1
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size());
  EXPECT_EQ(devices(devices_after_losses(members, 4, 8)), std::vector<std::string>(all.begin() + 1, all.end()));
  EXPECT_EQ(devices(devices_after_losses(members, 1, 2)), std::vector<std::string>(all.begin(), all.begin() + 2));
  EXPECT_TRUE(devices_after_losses({members.front()}, 0, 8).empty());
}

/// Ranks of a plan by member, as assign_ranks() says.
std::vector<int> ranks_of(const std::vector<std::size_t>& order, const Plan& plan) {
  std::vector<int> ranks(order.size(), -1);
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    ranks[order[rank]] = static_cast<int>(rank) < plan.ranks() ? static_cast<int>(rank) : -1;
  return ranks;
}

TEST(Roles, GroupsStayWhereTheirStateIs) {
  const Plan plan = plan_of({{.count = 3, .micro_batches = 4, .stages = {stage(0, 3, 2), stage(3, 6, 2)}}});
  auto members = members_on({{"n0", 2, "A100-40"},
                             {"n1", 2, "A100-40"},
                             {"n2", 2, "A100-40"},
                             {"n3", 2, "A100-40"},
                             {"n4", 2, "A100-40"},
                             {"n5", 2, "A100-40"},
                             {"n6", 2, "A100-40"}});
  const auto first = assign_ranks(plan, members);
  ASSERT_TRUE(first) << first.error().message();
  EpochBefore before{.plan = plan, .ranks = ranks_of(*first, plan)};
  const auto lose = [&](std::size_t member) {
    members.erase(members.begin() + static_cast<std::ptrdiff_t>(member));
    before.ranks.erase(before.ranks.begin() + static_cast<std::ptrdiff_t>(member));
  };
  // A rank of n2 dies: its group goes to the spare n6, all others stay, and the other rank of n2 is spare.
  const int lost = before.ranks[4];
  const int left = before.ranks[5];
  lose(4);
  const auto next = assign_ranks(plan, members, &before);
  ASSERT_TRUE(next) << next.error().message();
  std::vector<int> expected = before.ranks;
  expected[4] = -1;
  expected[11] = std::min(lost, left);
  expected[12] = std::max(lost, left);
  EXPECT_EQ(ranks_of(*next, plan), expected);
  // It starts again on n2: the group stays there, and so does the part of the rank that lived on.
  members.push_back({.host = "n2", .gpu = "A100-40", .zone = "", .data = ""});
  before.ranks.push_back(-1);
  const auto again = assign_ranks(plan, members, &before);
  ASSERT_TRUE(again) << again.error().message();
  expected = before.ranks;
  expected.back() = lost;
  EXPECT_EQ(ranks_of(*again, plan), expected);
  // Fewer pipelines: n0 and n5 are lost, whose groups are of different pipelines; what is left of these makes one.
  for (const char* host : {"n0", "n5", "n6"})
    for (std::size_t i = members.size(); i-- > 0;)
      if (members[i].host == host) lose(i);
  Plan smaller = plan;
  smaller.pipelines[0].count = 2;
  smaller.pipelines[0].micro_batches = 6;
  const auto fewer = assign_ranks(smaller, members, &before);
  ASSERT_TRUE(fewer) << fewer.error().message();
  const std::vector<int> ranks = ranks_of(*fewer, smaller);
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (before.ranks[i] < 0 || ranks[i] < 0) continue;
    const auto roles = rank_roles(plan);
    const RankRole& old = roles[static_cast<std::size_t>(before.ranks[i])];
    const RankRole now = rank_roles(smaller)[static_cast<std::size_t>(ranks[i])];
    EXPECT_EQ(std::pair(old.stage, old.tensor_parallel_index), std::pair(now.stage, now.tensor_parallel_index));
  }
  EXPECT_EQ(std::count(ranks.begin(), ranks.end(), -1), 0);
}

TEST(Roles, WhatStaysNeverKeepsAPlanFromBeingPlaced) {
  std::mt19937_64 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int placed = 0;
  int kept = 0;
  int kept_by_chance = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const auto random_plan = [&] {
      std::vector<Pipeline> pipelines;
      for (int i = draw(1, 3); i > 0; --i) {
        const int degree = 1 << draw(0, 2);
        Pipeline pipeline{.count = draw(1, 3), .micro_batches = 2, .stages = {}};
        if (draw(0, 1) == 0)
          pipeline.stages = {stage(0, 6, degree)};
        else
          pipeline.stages = {stage(0, 3, degree), stage(3, 6, 1 << draw(0, 2))};
        pipelines.push_back(pipeline);
      }
      return plan_of(pipelines);
    };
    std::vector<std::tuple<std::string, int, std::string>> hosts;
    for (int i = draw(1, 12); i > 0; --i) hosts.emplace_back("n" + std::to_string(i), draw(1, 4), "A100-40");
    auto members = members_on(hosts);
    const Plan plan = random_plan();
    const auto order = assign_ranks(plan, members);
    if (!order) continue;
    EpochBefore before{.plan = plan, .ranks = ranks_of(*order, plan)};
    for (std::size_t i = members.size(); i-- > 0;)
      if (draw(0, 4) == 0) {
        members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
        before.ranks.erase(before.ranks.begin() + static_cast<std::ptrdiff_t>(i));
      }
    const bool same_plan = draw(0, 2) != 0;
    const Plan next = same_plan ? plan : random_plan();
    const auto found = assign_ranks(next, members, &before);
    const auto anew = assign_ranks(next, members);
    ASSERT_EQ(found.has_value(), anew.has_value()) << "trial " << trial;
    if (!found) continue;
    ++placed;
    ASSERT_EQ(found->size(), members.size());
    ASSERT_EQ(std::set<std::size_t>(found->begin(), found->end()).size(), members.size());
    std::map<std::tuple<int, int, int>, std::set<std::string>> hosts_of_group;
    for (const RankRole& role : rank_roles(next))
      hosts_of_group[{role.pipeline, role.stage, role.context_parallel_index}].insert(
          members[(*found)[static_cast<std::size_t>(role.rank)]].host);
    for (const auto& [key, names] : hosts_of_group) EXPECT_EQ(names.size(), 1u) << "trial " << trial;
    if (!same_plan) continue;
    const std::vector<int> ranks = ranks_of(*found, next);
    const std::vector<int> by_chance = ranks_of(*anew, next);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      kept += static_cast<int>(ranks[i] >= 0 && ranks[i] == before.ranks[i]);
      kept_by_chance += static_cast<int>(by_chance[i] >= 0 && by_chance[i] == before.ranks[i]);
    }
  }
  EXPECT_GT(placed, 50);
  EXPECT_GT(kept, 1.4 * kept_by_chance);
}

TEST(Roles, IdleMembersFillGapsBeforeRanksOfOtherGroupsDo) {
  const Plan plan = plan_of({{.count = 2, .micro_batches = 4, .stages = {stage(0, 6, 2)}}});
  // Two groups of a host lost a rank each; two other members of the host were spare.
  const auto members = members_on({{"n0", 4, "A100-40"}});
  const EpochBefore before{.plan = plan, .ranks = {0, 2, 4, 5}};
  const auto order = assign_ranks(plan, members, &before);
  ASSERT_TRUE(order) << order.error().message();
  EXPECT_EQ(*order, (std::vector<std::size_t>{0, 2, 1, 3}));
}

TEST(Roles, GroupsThatExchangeSequencesMoveTogether) {
  Plan plan = plan_of({{.count = 2, .micro_batches = 4, .stages = {stage(0, 6, 2)}}});
  plan.context_parallel = 2;
  auto members = members_on({{"n0", 4, "A100-40"}, {"n1", 4, "A100-40"}, {"n2", 4, "A100-40"}});
  EpochBefore before{.plan = plan, .ranks = {0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1}};
  members.erase(members.begin() + 3);
  before.ranks.erase(before.ranks.begin() + 3);
  const auto order = assign_ranks(plan, members, &before);
  ASSERT_TRUE(order) << order.error().message();
  for (std::size_t rank = 0; rank < 8; ++rank) EXPECT_EQ(members[(*order)[rank]].host, rank < 4 ? "n2" : "n1");
}

TEST(Roles, RanksWithOtherExpertsAreNotTakenForThoseOfAUnit) {
  // Four copies, on a host each; the second is lost. The others have parts 0, 0 and 1 of the experts.
  Plan old = plan_of({{.count = 4, .micro_batches = 4, .stages = {stage(0, 6)}}});
  old.expert_parallel = 2;
  auto members = members_on({{"n0", 1, "A100-40"}, {"n2", 1, "A100-40"}, {"n3", 1, "A100-40"}});
  const EpochBefore before{.plan = old, .ranks = {0, 2, 3}};
  Plan plan = old;
  plan.pipelines[0].count = 2;
  const auto order = assign_ranks(plan, members, &before);
  ASSERT_TRUE(order) << order.error().message();
  EXPECT_EQ((*order)[0], 0U);  // stays
  EXPECT_EQ((*order)[1], 2U);  // has the second part
  // Under another degree nobody has what ranks have now.
  plan.pipelines[0].count = 3;
  plan.expert_parallel = 3;
  EXPECT_TRUE(assign_ranks(plan, members, &before));
}

TEST(Roles, DevicesOfUnknownTypeAreRefusedWithTheOptionThatNamesThem) {
  MemberFacts facts{.host = "n7", .gpu = {}, .zone = {}, .data = ""};
  const Plan mixed = plan_of({{.count = 1, .micro_batches = 4, .stages = {stage(0, 3), stage(3, 6, 1, "V100-16")}}});
  const auto completed = complete_facts(facts, mixed);
  ASSERT_FALSE(completed);
  EXPECT_EQ(completed.error().message(),
            "a process on n7 does not say which type of device it has, and the plan has A100-40, V100-16; start it "
            "with --gpu-type NAME");
  ASSERT_TRUE(complete_facts(facts, plan_of({{.count = 1, .micro_batches = 4, .stages = {stage(0, 6)}}})));
  EXPECT_EQ(facts.gpu, "A100-40");
}

/// A folder that goes with its owner.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "sailor-elastic-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Journal, IsReadUpToALineThatWasCutOff) {
  const Folder folder;
  const fs::path path = folder.path() / "journal.jsonl";
  {
    auto file = JsonLines::open(path);
    ASSERT_TRUE(file) << file.error().message();
    const std::vector<runtime::MemberInfo> members{{.id = 4, .facts = {.host = "n1", .data = "here"}, .rank = 0}};
    ASSERT_TRUE(file->add(journal_line(7, 3, members, 1, "the plan"), true));
  }
  std::ofstream(path, std::ios::app) << R"({"what":"epo)";
  auto again = JsonLines::open(path);
  ASSERT_TRUE(again) << again.error().message();
  const auto epoch = last_epoch(again->lines());
  ASSERT_TRUE(epoch);
  EXPECT_EQ(epoch->members.job, 7u);
  EXPECT_EQ(epoch->members.epoch, 3u);
  EXPECT_EQ(epoch->members.members[0].data, "here");
  EXPECT_FALSE(was_stopped(again->lines()));
  ASSERT_TRUE(again->add({{"what", "stopped"}}, true));
  const auto third = JsonLines::open(path);
  ASSERT_TRUE(third);
  ASSERT_EQ(third->lines().size(), 2u);
  EXPECT_TRUE(was_stopped(third->lines()));
  std::ofstream(path, std::ios::app) << "something else\n";
  const auto wrong = JsonLines::open(path);
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message().find("line 3"), std::string::npos) << wrong.error().message();
}

/// A rank without a model: agrees with the others, iteration by iteration. It hangs before iteration `hangs_at` of the
/// first epoch, as a rank does whose main thread is stuck; or it dies there.
void pretend_to_train(const fs::path& folder, int rank, std::int64_t hangs_at, std::atomic<int>& finished,
                      bool says_goodbye = true, bool dies = false) {
  while (find_controller(folder).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  auto joined = runtime::Member::join(find_controller(folder),
                                      {.rank = rank, .timeout = Seconds(60.0), .heartbeat = Seconds(0.1)});
  if (!joined) throw std::runtime_error(joined.error().message());
  runtime::Member& member = **joined;
  std::int64_t iteration = 0;
  std::string why;
  while (true) {
    if (const auto begun = member.begin_epoch(why); !begun) {
      if (member.dismissal() != runtime::Dismissal::none) return;
      throw std::runtime_error(begun.error().message());
    }
    try {
      const runtime::World world = member.world();
      iteration = static_cast<std::int64_t>(world.control.max(static_cast<double>(iteration)));
      member.report_progress({.iteration = iteration, .of = 40, .from = "memory"});
      for (; iteration < 40; ++iteration) {
        if (member.epoch() == 1 && iteration == hangs_at) {
          while (!dies && member.dismissal() == runtime::Dismissal::none)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          return;
        }
        (void)world.control.sum(1.0);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        member.report_progress({.iteration = iteration + 1, .time = Seconds(0.005), .of = 40, .from = "memory"});
      }
      world.control.barrier();
      if (says_goodbye) member.leave(0, "");
      // It dies when the other has left, or was dismissed.
      for (int i = 0; i < 4000 && !says_goodbye && finished == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ++finished;
      return;
    } catch (const runtime::TransportError& error) {
      why = member.why_broken().empty() ? error.what() : "";
    }
  }
}

TEST(ElasticFolder, NodesAreLeftThatPeopleNameAndThoseWhoseJobsAreAboutToEnd) {
  const Folder folder;
  EXPECT_EQ(*excluded_nodes(folder.path()), std::set<std::string>{});
  ASSERT_TRUE(exclude_nodes(folder.path(), {"n2", "n1"}, {}));
  std::filesystem::create_directories(folder.path() / "leaving");
  std::ofstream(folder.path() / "leaving" / "n7");
  EXPECT_EQ(*excluded_nodes(folder.path()), (std::set<std::string>{"n1", "n2", "n7"}));
  // Nodes that leave by themselves are not put into the list of those that people name.
  ASSERT_TRUE(exclude_nodes(folder.path(), {"n3"}, {"n1"}));
  EXPECT_EQ(*read_text_file(folder.path() / "exclude"), "n2\nn3\n");
  ASSERT_TRUE(exclude_nodes(folder.path(), {}, {"n2", "n3"}));
  EXPECT_EQ(*read_text_file(folder.path() / "exclude"), "");
}

TEST(TimeAccount, CountsInterruptionsAndIterationsThatWereRunAgain) {
  const auto event = [](const std::string& what, double time, double seconds = 0.0, double again = 0.0) {
    return nlohmann::json{{"what", what}, {"unix_time_s", time}, {"seconds", seconds}, {"seconds_again", again}};
  };
  TimeAccount account;
  EXPECT_EQ(account.goodput(50.0), 1.0);
  account.add(event("begins", 10.0));
  account.add(event("goes_on", 20.0, 7.0, 3.0));
  account.add(event("begins", 100.0));  // another start of the job
  account.add(event("lost", 110.0));
  account.add(event("goes_on", 115.0, 5.0));
  account.add(event("goes_on", 150.0, 2.0, 3.0));
  EXPECT_EQ(account.total(200.0), Seconds(100.0));
  EXPECT_EQ(account.without_training(200.0), Seconds(7.0));
  EXPECT_EQ(account.again(), Seconds(3.0));
  EXPECT_DOUBLE_EQ(account.goodput(200.0), 0.9);
  // It was 90 % as well for a training that stood still until the end: an interruption counted when it was over.
  account.add(event("lost", 150.0));  // a spare rank
  EXPECT_EQ(account.without_training(200.0), Seconds(7.0));
  account.add(event("lost", 151.0));
  account.add(event("waits", 155.0));
  EXPECT_EQ(account.without_training(200.0), Seconds(7.0 + 50.0));
  EXPECT_DOUBLE_EQ(account.goodput(200.0), 0.4);
  account.add(event("goes_on", 210.0, 59.0));
  EXPECT_EQ(account.without_training(300.0), Seconds(7.0 + 59.0));
}

// No plan fitted into nodes of CPUs of which no cluster file says how much memory they have.
TEST(ClusterOf, NodesHaveTheMemoryThatTheirRanksSayUnlessMoreIsKnown) {
  const auto member = [](const std::string& host, double memory) {
    return MemberFacts{.host = host, .gpu = "cpu", .zone = "", .memory = Bytes(memory)};
  };
  // The second rank of a node finds less of it free.
  const std::vector<MemberFacts> members{member("a", 8e9), member("a", 6e9), member("b", 7e9),
                                         member("b", 5e9), member("c", 9e9), member("d", 0.0)};
  const Cluster cluster = cluster_of(members, {});
  ASSERT_EQ(cluster.groups.size(), 2U);
  EXPECT_EQ(cluster.groups[0].gpus_per_node, 1);
  EXPECT_EQ(cluster.groups[0].memory_per_node, Bytes(9e9));
  EXPECT_EQ(cluster.groups[1].count, 2);
  EXPECT_EQ(cluster.groups[1].memory_per_node, Bytes(7e9));
  Cluster known;
  known.groups = {{.nodes = {}, .count = 9, .gpu = "cpu", .gpus_per_node = 4, .memory_per_node = Bytes(4e9)}};
  EXPECT_EQ(cluster_of(members, known).groups[1].memory_per_node, Bytes(2e9));
}

/// So many pipelines of one stage; plans for fewer or more devices repeat or leave out some.
ControllerSettings replicas(int count, const Folder& folder) {
  return {.folder = folder.path(),
          .plan = plan_of({{.count = count, .micro_batches = 4, .stages = {stage(0, 6)}}}),
          .make_plan = [](const Plan& before, std::span<const MemberFacts> members,
                          const std::function<bool()>&) { return adapt_plan(before, members); },
          .say = {},
          .beat = {},
          .stop_request = {}};
}

TEST(Controller, ARankThatHangsIsFoundByTheIterationsAndLeftOut) {
  const Folder folder;
  std::vector<std::string> said;
  std::atomic<int> finished = 0;
  ControllerSettings settings = replicas(3, folder);
  settings.silence = Seconds(0.5);
  settings.patience = Seconds(20.0);
  settings.say = [&](const std::string& line) { said.push_back(line); };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        pretend_to_train(folder.path(), rank, rank == 1 ? 10 : -1, finished);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  const auto status = control(settings);
  for (std::thread& rank : ranks) rank.join();
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_EQ(*status, 0);
  EXPECT_EQ(finished, 2);
  const std::string all = std::accumulate(said.begin(), said.end(), std::string(),
                                          [](const std::string& a, const std::string& b) { return a + b + "\n"; });
  EXPECT_NE(all.find("no iteration ended for"), std::string::npos) << all;
  EXPECT_NE(all.find("it hangs: it did not leave the epoch"), std::string::npos) << all;
  EXPECT_NE(all.find("epoch 2: 2 ranks go on at iteration 10 from memory"), std::string::npos) << all;
}

TEST(Controller, OnlyRanksOfThePlanKeepCopies) {
  const Folder folder;
  std::atomic<int> finished = 0;
  ControllerSettings settings = replicas(3, folder);
  settings.silence = Seconds(5.0);
  settings.patience = Seconds(20.0);
  // One of the two ranks that are left becomes a spare.
  settings.make_plan = [](const Plan& before, std::span<const MemberFacts> members, const std::function<bool()>&) {
    return adapt_plan(before, members.first(1));
  };
  std::vector<std::pair<int, std::size_t>> asked;
  settings.copies = [&](const Plan& plan, const std::vector<std::string>& hosts) {
    asked.emplace_back(plan.ranks(), hosts.size());
    return true;
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        pretend_to_train(folder.path(), rank, rank == 2 ? 10 : -1, finished, true, rank == 2);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  const auto status = control(settings);
  for (std::thread& rank : ranks) rank.join();
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_EQ(asked, (std::vector<std::pair<int, std::size_t>>{{3, 3}, {1, 1}}));
}

TEST(Controller, ATrainingIsDoneThoughARankDiesBeforeItSaysSo) {
  const Folder folder;
  std::atomic<int> finished = 0;
  ControllerSettings settings = replicas(2, folder);
  settings.silence = Seconds(5.0);
  settings.patience = Seconds(20.0);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        pretend_to_train(folder.path(), rank, -1, finished, rank == 0);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  const auto status = control(settings);
  for (std::thread& rank : ranks) rank.join();
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_EQ(*status, 0);
}

TEST(Controller, SaysThatNobodyCame) {
  const Folder folder;
  ControllerSettings settings = replicas(1, folder);
  settings.patience = Seconds(0.3);
  const auto status = control(settings);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().what, "no rank came within 0.3 s");
}

}  // namespace
}  // namespace sailor::elastic::elastic_test
