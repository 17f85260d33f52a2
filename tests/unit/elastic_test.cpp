// The controller of an elastic training without its program: plans for other devices, assignment of ranks, files in its
// folder, and ranks that hang.
#include "elastic/controller.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "core/files.hpp"
#include "elastic/adapted_plan.hpp"
#include "elastic/folder.hpp"
#include "elastic/time_account.hpp"
#include "runtime/sockets/member.hpp"

namespace sailor::elastic {
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
  const std::vector<Plan> plans{
      plan_of({{.count = 4, .micro_batches = 6, .stages = {stage(0, 3), stage(3, 6)}}}),
      plan_of({{.count = 1, .micro_batches = 8, .stages = {stage(0, 3, 2), stage(3, 6, 2)}},
               {.count = 2, .micro_batches = 3, .stages = {stage(0, 6)}}}),
      plan_of({{.count = 1, .micro_batches = 4, .micro_batch = 4, .stages = {stage(0, 3), stage(3, 6)}},
               {.count = 1, .micro_batches = 4, .micro_batch = 2, .stages = {stage(0, 6)}}}),
  };
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
  EXPECT_EQ(account.without_training(), Seconds(7.0));
  EXPECT_EQ(account.again(), Seconds(3.0));
  EXPECT_DOUBLE_EQ(account.goodput(200.0), 0.9);
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
}  // namespace sailor::elastic
