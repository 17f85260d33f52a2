#include "simulator/cases.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "core/files.hpp"
#include "plan/original_plan.hpp"
#include "profile/run_file.hpp"

namespace sailor::simulator::cases_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* plan_keys = R"(micro_batch = 2
schedule = "1f1b"
job = { model = "tiny-gpt", global_batch = 8, sequence_length = 64, precision = "fp32", optimizer = "adamw" }
[[PREFIXpipelines]]
micro_batches = 4
stages = [
  { layers = [0, 3], gpu = "cpu" },
  { layers = [3, 6], gpu = "cpu" },
]
)";

std::string plan_text(const std::string& prefix) {
  std::string text = plan_keys;
  text.replace(text.find("PREFIX"), 6, prefix);
  return text;
}

const std::string head = R"(schema_version = 1
title = "t"
source = "s"
framework = "sailor"
)";

const std::string inline_case = R"([[cases]]
name = "inline"
note = "one of two"
iteration_time_s = 2.0
iteration_time_low_s = 1.5
iteration_time_high_s = 2.5
peak_memory_bytes = 1e9
[cases.plan]
)" + plan_text("cases.plan.");

const std::string file_case = R"([[cases]]
name = "file"
plan = "plan.toml"
iteration_time_s = 3.0
)";

const std::string run_case = R"([[cases]]
name = "run"
artefact = true
note = "a start-up"
run = "run.h5"
)";

/// A folder with plan.toml and run.h5.
class Cases : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sailor-cases-test-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    ASSERT_TRUE(write_file_atomically(folder_ / "plan.toml", "schema_version = 1\n" + plan_text("")));
    run_.plan_toml = "schema_version = 1\n" + plan_text("");
    run_.warm_up_iterations = 1;
    for (const double time : {9.0, 4.0, 5.0, 6.0}) run_.iterations.push_back({.time = Seconds(time)});
    run_.ranks = {{.rank = 0, .host = "n", .peak_resident_memory = Bytes(7e8)},
                  {.rank = 1, .host = "n", .peak_resident_memory = Bytes(6e8)}};
    const auto saved = save_run(run_, folder_ / "run.h5");
    ASSERT_TRUE(saved.has_value()) << saved.error().message();
  }
  void TearDown() override { fs::remove_all(folder_); }

  Result<CaseFile> parse(const std::string& text) const { return parse_cases(text, "c.toml", folder_); }
  std::string error_of(const std::string& text) const {
    const auto file = parse(text);
    return file ? "" : file.error().message();
  }
  std::string error_with(std::string text, const std::string& from, const std::string& to) const {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return error_of(text);
  }

  fs::path folder_;
  RunRecord run_;
};

TEST_F(Cases, PlansStandInTheFileOrBesideItOrInARun) {
  const auto file = parse(head + inline_case + file_case + run_case);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_EQ(file->title, "t");
  EXPECT_EQ(file->source, "s");
  EXPECT_EQ(file->framework, "sailor");
  ASSERT_EQ(file->cases.size(), 3U);
  const auto plan = load_plan(folder_ / "plan.toml");
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  for (const Case& entry : file->cases) EXPECT_EQ(plan_fingerprint(entry.plan), plan_fingerprint(*plan)) << entry.name;

  const Case& in_file = file->cases[0];
  EXPECT_EQ(in_file.note, "one of two");
  EXPECT_FALSE(in_file.artefact);
  EXPECT_EQ(in_file.iteration_time, Seconds(2.0));
  EXPECT_EQ(in_file.iteration_time_low, Seconds(1.5));
  EXPECT_EQ(in_file.iteration_time_high, Seconds(2.5));
  EXPECT_EQ(in_file.peak_memory, Bytes(1e9));

  EXPECT_EQ(file->cases[1].iteration_time, Seconds(3.0));
  EXPECT_FALSE(file->cases[1].iteration_time_low.has_value());
  EXPECT_FALSE(file->cases[1].peak_memory.has_value());

  // Iterations of 4, 5 and 6 s after one of warm-up; the larger of two ranks.
  const Case& of_run = file->cases[2];
  EXPECT_TRUE(of_run.artefact);
  EXPECT_EQ(of_run.iteration_time, Seconds(5.0));
  EXPECT_EQ(of_run.iteration_time_low, run_.iteration_time().low);
  EXPECT_EQ(of_run.iteration_time_high, run_.iteration_time().high);
  EXPECT_EQ(of_run.peak_memory, Bytes(7e8));
}

TEST_F(Cases, FileNamesAreRelativeToTheFolderOfTheFile) {
  ASSERT_TRUE(write_file_atomically(folder_ / "cases.toml", head + file_case));
  const auto file = load_cases(folder_ / "cases.toml");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_EQ(file->cases[0].plan.micro_batch, 2);
  EXPECT_EQ(load_cases(folder_ / "none.toml").error().code, ErrorCode::not_found);
}

TEST_F(Cases, BadFilesAreRefusedWithLineColumnAndReason) {
  EXPECT_TRUE(error_of("schema_version = 1\n" + plan_text(""))
                  .find("this is a plan (plan.toml), not a file of measured cases; sailor-simulate") !=
              std::string::npos)
      << error_of("schema_version = 1\n" + plan_text(""));
  EXPECT_EQ(error_of(head), "c.toml:1:1: the file has no cases; add at least one [[cases]]");
  EXPECT_EQ(error_of(head + file_case + file_case), "c.toml:10:8: two cases have the name 'file'; rename one");
  EXPECT_EQ(error_with(head + file_case, "plan = \"plan.toml\"\n", ""), "c.toml:5:1: key 'cases[0].plan' is missing");
  EXPECT_EQ(error_with(head + file_case, "iteration_time_s = 3.0\n", ""),
            "c.toml:5:1: key 'cases[0].iteration_time_s' is missing");
  EXPECT_EQ(error_with(head + file_case, "3.0", "0"),
            "c.toml:8:20: 'cases[0].iteration_time_s' is 0 but must be at least 1e-09");
  EXPECT_EQ(error_with(head + file_case, "plan.toml", "other.toml"),
            "c.toml:7:8: file '" + (folder_ / "other.toml").string() + "' does not exist");
  EXPECT_EQ(error_with(head + inline_case, "iteration_time_low_s = 1.5\n", ""),
            "c.toml:5:1: key 'cases[0].iteration_time_low_s' is missing");
  EXPECT_EQ(error_with(head + inline_case, "iteration_time_low_s = 1.5", "iteration_time_low_s = 2.25"),
            "c.toml:8:20: iteration_time_s is 2 but from iteration_time_low_s to iteration_time_high_s is 2.25 to 2.5");
  EXPECT_EQ(error_with(head + inline_case, "layers = [3, 6]", "layers = [4, 6]"),
            "c.toml:20:14: stage 1 starts at layer 4 but stage 0 ends at 3");
  EXPECT_EQ(error_with(head + inline_case, "schedule = \"1f1b\"", "schedule = \"1f1b\"\ncolour = 1"),
            "c.toml:15:10: unknown key 'cases[0].plan.colour'; check the spelling or remove it");
  EXPECT_EQ(error_with(head + run_case, "note = \"a start-up\"\n", ""),
            "c.toml:7:12: an artefact needs a reason; say in 'note' what the run measured instead");
  EXPECT_EQ(error_of(head + run_case + "iteration_time_s = 1\n"),
            "c.toml:10:20: 'iteration_time_s' stands beside run, which has it; remove one of the two");
  EXPECT_TRUE(error_with(head + run_case, "run.h5", "none.h5").starts_with("c.toml:9:7: file '"))
      << error_with(head + run_case, "run.h5", "none.h5");
}

TEST_F(Cases, RunWithoutAnIterationAfterItsWarmUpIsRefused) {
  run_.warm_up_iterations = 4;
  ASSERT_TRUE(save_run(run_, folder_ / "run.h5"));
  EXPECT_EQ(error_of(head + run_case), "c.toml:9:7: '" + (folder_ / "run.h5").string() +
                                           "' has no iteration after the 4 of its warm-up; train more iterations");
}

TEST(ErrorSummary, IsThatOfHandArithmetic) {
  // Absolute, in order: 0.01 0.02 0.03 0.10. Mean 0.16 / 4; median between 0.02 and 0.03; the 95th percentile lies at
  // 0.95 x 3 = 2.85, that is 0.03 + 0.85 x 0.07 = 0.0895; signed sum 0.01 - 0.02 + 0.03 - 0.10 = -0.08.
  const std::vector<double> errors{0.03, -0.10, 0.01, -0.02};
  const ErrorSummary summary = summarize_errors(errors);
  EXPECT_EQ(summary.cases, 4U);
  EXPECT_NEAR(summary.mean, 0.04, 1e-12);
  EXPECT_NEAR(summary.median, 0.025, 1e-12);
  EXPECT_NEAR(summary.p95, 0.0895, 1e-12);
  EXPECT_NEAR(summary.largest, 0.10, 1e-12);
  EXPECT_NEAR(summary.bias, -0.02, 1e-12);
  EXPECT_NEAR(summary.lowest, -0.10, 1e-12);
  EXPECT_EQ(summarize_errors({}).cases, 0U);
  EXPECT_EQ(summarize_errors({}).mean, 0.0);
}

const fs::path published_cases = SAILOR_SOURCE_DIR "/experiments/gh200-opt-350m.toml";

TEST(PublishedCases, SuitTheirModelAndOneIsAnArtefact) {
  const auto file = load_cases(published_cases);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const auto model = find_model("opt-350m-sailor", SAILOR_SOURCE_DIR "/profiles/models");
  ASSERT_TRUE(model.has_value()) << model.error().message();
  EXPECT_EQ(file->framework, "megatron-deepspeed");
  EXPECT_EQ(file->cases.size(), 15U);
  int artefacts = 0;
  for (const Case& entry : file->cases) {
    const auto good = check_plan(entry.plan, *model);
    EXPECT_TRUE(good.has_value()) << entry.name << ": " << good.error().message();
    EXPECT_TRUE(entry.peak_memory.has_value()) << entry.name;
    if (entry.artefact) ++artefacts;
  }
  EXPECT_EQ(artefacts, 1);
}

TEST(PublishedCases, AreThoseOfThePublishedFiles) {
  const char* folder = std::getenv("SAILOR_PUBLISHED_DIR");
  if (folder == nullptr) GTEST_SKIP() << "SAILOR_PUBLISHED_DIR does not name the published files";
  const auto file = load_cases(published_cases);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const auto model = find_model("opt-350m-sailor", SAILOR_SOURCE_DIR "/profiles/models");
  ASSERT_TRUE(model.has_value()) << model.error().message();
  std::map<std::string, const Case*> by_plan;
  for (const Case& entry : file->cases) by_plan[plan_fingerprint(entry.plan)] = &entry;
  std::size_t files = 0;
  for (const auto& path : fs::directory_iterator(fs::path(folder) / "validation" / "gh200-opt-350m")) {
    const auto original = load_original_plan(
        path.path(), {.model = *model, .precision = Precision::tf32, .gpu_name = [](std::string_view name) {
                        return name == "GH-96" ? Result<std::string>("GH200-96") : fail(ErrorCode::not_found, "");
                      }});
    ASSERT_TRUE(original.has_value()) << original.error().message();
    const auto found = by_plan.find(plan_fingerprint(original->plan));
    ASSERT_NE(found, by_plan.end()) << path.path();
    EXPECT_EQ(found->second->iteration_time, original->measured_time) << path.path();
    EXPECT_EQ(found->second->peak_memory, original->measured_memory) << path.path();
    ++files;
  }
  EXPECT_EQ(files, by_plan.size());
}

}  // namespace
}  // namespace sailor::simulator::cases_test
