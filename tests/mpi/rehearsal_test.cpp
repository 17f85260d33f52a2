// sailor-train --rehearse: plans for GPUs on ranks of this machine.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "core/files.hpp"
#include "mpi_test.hpp"
#include "plan/plan.hpp"

namespace sailor {
namespace {

namespace fs = std::filesystem;

Stage stage(int first, int last, int tensor_parallel) {
  Stage stage;
  stage.layers = {first, last};
  stage.gpu = "A100-40";
  stage.tensor_parallel = tensor_parallel;
  return stage;
}

/// A row of the table of memory, in GiB.
struct Row {
  int pipeline = 0;
  int stage = 0;
  std::string gpu;
  int ranks = 0;
  int communicators = 0;
  double tensors = 0.0;
  double rehearsed = 0.0;
  double simulated = 0.0;
  double device = 0.0;
  std::string fits;
};

class Rehearsal : public MpiTest {
 protected:
  [[nodiscard]] std::string output() const { return *read_text_file(folder_ / "out"); }
  [[nodiscard]] std::string errors() const { return *read_text_file(folder_ / "err"); }

  void write_plan(std::vector<Pipeline> pipelines, int micro_batch = 1, const std::string& model = "opt-350m-sailor",
                  Precision precision = Precision::tf32, OptimizerSharding sharding = OptimizerSharding::none) const {
    Plan plan;
    plan.optimizer_sharding = sharding;
    plan.job = {.model = model, .global_batch = 0, .sequence_length = 2048, .precision = precision, .optimizer = {}};
    plan.micro_batch = micro_batch;
    plan.pipelines = std::move(pipelines);
    for (const Pipeline& pipeline : plan.pipelines)
      plan.job.global_batch += pipeline.count * pipeline.micro_batches * plan.micro_batch_of(pipeline);
    ASSERT_TRUE(save_plan(plan, folder_ / "plan.toml"));
  }

  /// Exit status.
  [[nodiscard]] int rehearse(int ranks, const std::string& arguments = "",
                             const std::string& framework = "megatron-deepspeed") const {
    const int status =
        std::system(fmt::format("timeout 120 {} -n {} {}/sailor-train --rehearse {} --profile published --framework {} "
                                "--timeout 30 {} >{} 2>{}",
                                SAILOR_MPIEXEC, ranks, SAILOR_BIN_DIR, path("plan.toml"), framework, arguments,
                                path("out"), path("err"))
                        .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  /// Rehearsed over simulated time, less 1: what waits that end exactly would give.
  [[nodiscard]] double time_error() const {
    const std::string text = output();
    const std::size_t line = text.find("# iteration time: ");
    if (line == std::string::npos) return 1e9;
    const std::size_t sign = text.find_first_of("+-", text.find("simulated", line));
    return std::stod(text.substr(sign)) / 100.0;
  }

  [[nodiscard]] std::vector<Row> memory() const {
    std::vector<Row> rows;
    std::istringstream text(output());
    bool in_table = false;
    for (std::string line; std::getline(text, line);) {
      if (in_table) {
        Row row;
        std::istringstream(line) >> row.pipeline >> row.stage >> row.gpu >> row.ranks >> row.communicators >>
            row.tensors >> row.rehearsed >> row.simulated >> row.device >> row.fits;
        rows.push_back(row);
      }
      in_table = in_table || line.starts_with("----");
    }
    return rows;
  }

  void expect_memory_as_simulated(std::size_t stages) const {
    const std::vector<Row> rows = memory();
    ASSERT_EQ(rows.size(), stages) << output();
    for (const Row& row : rows) {
      SCOPED_TRACE(fmt::format("pipeline {}, stage {}", row.pipeline, row.stage));
      EXPECT_NEAR(row.rehearsed / row.simulated, 1.0, 0.03);
      EXPECT_GT(row.tensors, 0.0);
      EXPECT_LE(row.tensors, row.rehearsed);  // sailor-train keeps less than the published framework
      EXPECT_EQ(row.fits, "yes");
    }
  }
};

Pipeline four_stages(int count, int micro_batches) {
  return {.count = count,
          .micro_batches = micro_batches,
          .stages = {stage(0, 7, 2), stage(7, 13, 2), stage(13, 20, 2), stage(20, 26, 2)}};
}

TEST_F(Rehearsal, EqualPipelinesOnSixteenRanksTakeTheSimulatorsTime) {
  write_plan({four_stages(2, 8)});
  ASSERT_EQ(rehearse(16, "--rehearse-slowdown 0"), 0) << errors();
  EXPECT_NEAR(time_error(), 0.0, 0.05) << output();
  expect_memory_as_simulated(4);
}

TEST_F(Rehearsal, DividedSequencesTakeTheSimulatorsTime) {
  write_plan({four_stages(1, 8)});
  Plan plan = load_plan(folder_ / "plan.toml").value();
  plan.context_parallel = 2;
  for (const char* framework : {"megatron-deepspeed", "sailor"}) {  // a ring, and exchanges of heads
    SCOPED_TRACE(framework);
    ASSERT_TRUE(save_plan(plan, folder_ / "plan.toml"));
    ASSERT_EQ(rehearse(16, "--rehearse-slowdown 0", framework), 0) << errors();
    EXPECT_NEAR(time_error(), 0.0, 0.05) << output();
    ASSERT_EQ(memory().size(), 4u) << output();
    EXPECT_EQ(memory()[0].ranks, 4);
  }
}

TEST_F(Rehearsal, DividedExpertsTakeTheSimulatorsTime) {
  const auto part = [](int first, int last) {
    Stage one = stage(first, last, 1);
    one.gpu = "GH200-96";
    return one;
  };
  write_plan({{.count = 8, .micro_batches = 4, .stages = {part(0, 17), part(17, 34)}}}, 1, "mixtral-8x7b",
             Precision::bf16);
  Plan plan = load_plan(folder_ / "plan.toml").value();
  for (const int degree : {2, 8}) {
    SCOPED_TRACE(degree);
    plan.expert_parallel = degree;
    ASSERT_TRUE(save_plan(plan, folder_ / "plan.toml"));
    const int status = rehearse(16, "--rehearse-slowdown 0", "sailor");
    ASSERT_TRUE(status == 0 || status == 3) << errors();  // 3: it does not fit
    EXPECT_NEAR(time_error(), 0.0, 0.05) << output();
    for (const Row& row : memory()) EXPECT_NEAR(row.rehearsed / row.simulated, 1.0, 0.1) << output();
  }
}

TEST_F(Rehearsal, UnequalPipelinesOnSixteenRanksTakeTheSimulatorsTime) {
  write_plan({{.micro_batches = 6, .stages = {stage(0, 10, 2), stage(10, 26, 4)}},
              {.micro_batches = 5, .stages = {stage(0, 8, 1), stage(8, 20, 2), stage(20, 26, 1)}},
              {.micro_batches = 2,
               .micro_batch = 2,
               .stages = {stage(0, 7, 1), stage(7, 13, 1), stage(13, 20, 1), stage(20, 26, 1)}},
              {.micro_batches = 2, .stages = {stage(0, 26, 2)}}});
  ASSERT_EQ(rehearse(16, "--rehearse-slowdown 0 --max-communicators 5"), 0) << errors();
  EXPECT_NEAR(time_error(), 0.0, 0.05) << output();
  expect_memory_as_simulated(10);
  EXPECT_NE(errors().find("communicators, more than 5 (--max-communicators)"), std::string::npos) << errors();
}

TEST_F(Rehearsal, WaitsForAsLongAsItSays) {
  write_plan({four_stages(1, 2)});
  ASSERT_EQ(rehearse(8, "--iterations 1"), 0) << errors();
  std::istringstream text(output().substr(output().find("exact_ms") + 8));
  int iteration = -1;
  double waited = 0.0;
  double exact = 0.0;
  text >> iteration >> waited >> exact;
  EXPECT_EQ(iteration, 0);
  EXPECT_GE(waited, exact - 0.2);  // never less; how much more is this machine's business
}

TEST_F(Rehearsal, APlanThatDoesNotFitExitsWithThree) {
  write_plan({{.micro_batches = 2, .stages = {stage(0, 20, 1), stage(20, 26, 1)}}}, 8);
  EXPECT_EQ(rehearse(2, "--rehearse-slowdown 0"), 3) << errors();
  EXPECT_NE(errors().find("sailor-train: error: the plan does not fit into memory: rank 0 (pipeline 0, stage 0) needs"),
            std::string::npos)
      << errors();
  ASSERT_EQ(memory().size(), 2u) << output();  // the report is there all the same
  EXPECT_EQ(memory()[0].fits, "no");
}

TEST_F(Rehearsal, WarnsWhenTensorsAndPredictionDifferByMoreThanAQuarter) {
  write_plan({four_stages(1, 4)});
  ASSERT_EQ(rehearse(8, "--rehearse-slowdown 0"), 0) << errors();
  EXPECT_NE(errors().find("the tensors of sailor-train take"), std::string::npos) << errors();
  EXPECT_NE(
      errors().find("that is predicted; the prediction is for framework megatron-deepspeed: for sailor-train, use "
                    "--framework sailor"),
      std::string::npos)
      << errors();

  // Of a model that nobody measured, in the framework that trains it, the estimate is close.
  write_plan({four_stages(1, 4)}, 1, "opt-350m", Precision::bf16);
  ASSERT_EQ(rehearse(8, "--rehearse-slowdown 0", "sailor"), 0) << errors();
  EXPECT_EQ(errors().find("the tensors of sailor-train take"), std::string::npos) << errors();
  ASSERT_EQ(memory().size(), 4u) << output();
  for (const Row& row : memory()) EXPECT_NEAR(row.tensors / row.simulated, 1.0, 0.1) << "stage " << row.stage;
}

// ZeRO-1's gathers of weights go on behind the update: they are of the iteration, too.
TEST_F(Rehearsal, WaitsAsLongAsWhatItRehearsesTakes) {
  write_plan({{.count = 4, .micro_batches = 1, .stages = {stage(0, 26, 1)}}}, 1, "opt-350m-sailor", Precision::tf32,
             OptimizerSharding::zero1);
  ASSERT_EQ(rehearse(4, "--rehearse-slowdown 1 --iterations 2", "sailor"), 0) << errors();
  int iterations = 0;
  std::istringstream text(output());
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    int iteration = 0;
    double waited = 0.0;  // ms
    double exact = 0.0;
    if (!(words >> iteration >> waited >> exact)) continue;
    EXPECT_GT(waited, 0.999 * exact) << line;
    ++iterations;
  }
  EXPECT_EQ(iterations, 2) << output();
}

TEST_F(Rehearsal, SaysWhatIsMissing) {
  write_plan({four_stages(1, 2)});
  EXPECT_EQ(rehearse(2), 1);
  EXPECT_NE(errors().find("the plan has 8 ranks but 2 were started"), std::string::npos) << errors();
}

}  // namespace
}  // namespace sailor
