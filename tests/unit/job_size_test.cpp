// Job sizes that the plugin reads from sbatch's command line and script.
#include <gtest/gtest.h>

#include "spank_plugin/job_size.hpp"

namespace sailor::spank::job_size_test {
namespace {

/// "nodes tasks tasks_per_node gpus_per_node", - where it is not said.
std::string size_text(const std::vector<std::string>& arguments, const std::string& script = {}) {
  const JobSize size = size_of_job(
      arguments, [&](const std::string& path) { return path == "script" ? std::optional(script) : std::nullopt; });
  std::string text = size.heterogeneous ? "heterogeneous" : "";
  for (const auto& value : {size.nodes, size.tasks, size.tasks_per_node, size.gpus_per_node})
    text += (text.empty() ? "" : " ") + (value ? std::to_string(*value) : std::string("-"));
  return text;
}

TEST(JobSize, IsWhatSbatchWasTold) {
  EXPECT_EQ(size_text({"-N2", "-n", "8", "--wrap", "true"}), "2 8 - -");
  EXPECT_EQ(size_text({"--nodes", "2-4", "--ntasks-per-node=4", "--gres=gpu:gh200:4,nic:1", "script", "-n", "1"},
                      "#!/bin/sh\n"),
            "4 - 4 4");
  EXPECT_EQ(size_text({"-n4", "script"},
                      "#!/bin/bash\n# x\n#SBATCH -N 2 --ntasks=16\n#SBATCH --gpus-per-node=\"a100:2\" # y\n"
                      "true\n#SBATCH -N 9\n"),
            "2 4 - 2");
  EXPECT_EQ(size_text({"script"}, "#!/bin/bash\n#SBATCH -n2\n#SBATCH hetjob\n#SBATCH -n3\n"), "heterogeneous - 3 - -");
  EXPECT_EQ(size_text({"-N", "some", "--job-name", "x"}), "- - - -");
  EXPECT_EQ(size_text({"-N1", "-n8", ":", "-N1", "-n4", "true"}), "heterogeneous 1 8 - -");
}

TEST(JobSize, IsNotThatOfTheCommandBehindTheOptions) {
  EXPECT_EQ(size_text({"-N", "2", "--exclusive", "srun", "-n", "4", "true"}), "2 - - -");
  EXPECT_EQ(size_text({"-N", "2", "-p", "gh", "-H", "srun", "-n4", "true"}), "2 - - -");
  EXPECT_EQ(size_text({"--nodes=2", "--", "srun", "--ntasks=4"}), "2 - - -");
  EXPECT_EQ(size_text({"--option-of-later-releases", "script", "-n", "1"}, "#!/bin/sh\n#SBATCH -N2\n"), "2 - - -");
}

TEST(JobSize, MustHoldThePlan) {
  Plan plan;
  plan.pipelines = {{.count = 2, .stages = {{.layers = {0, 3}, .gpu = "GH200-96", .tensor_parallel = 4}}}};
  const auto problem = [&](const JobSize& size) {
    const auto good = check_size(plan, size);
    return good ? std::string("fits") : good.error().message();
  };
  EXPECT_EQ(problem({}), "fits");
  EXPECT_EQ(problem({.tasks = 8}), "fits");
  EXPECT_EQ(problem({.nodes = 2, .tasks_per_node = 4, .gpus_per_node = 4}), "fits");
  EXPECT_EQ(problem({.nodes = 1}), "fits");  // the steps in it may say how many tasks
  const std::string four =
      "the plan has 8 ranks, but the job asks for 4 tasks; ask for at least --ntasks=8, as sailor-submit does";
  EXPECT_EQ(problem({.tasks = 4}), four);
  EXPECT_EQ(problem({.nodes = 1, .tasks_per_node = 4}), four);
  EXPECT_EQ(problem({.nodes = 1, .gpus_per_node = 4}),
            "the plan has 8 ranks, but the job asks for 4 GPUs; ask for more nodes, or for more GPUs of each");
  EXPECT_EQ(problem({.tasks = 4, .heterogeneous = true}), "fits");
}

}  // namespace
}  // namespace sailor::spank::job_size_test
