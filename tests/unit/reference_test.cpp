// The reference of the file formats and of the command lines, against the keys and options that the readers and the
// parser ask for.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "apps/command_table.hpp"
#include "apps/programs.hpp"
#include "apps/reference/reference.hpp"
#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/files.hpp"
#include "core/toml_reader.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "slurm/site.hpp"

namespace sailor::apps::reference_test {
namespace {

const FileFormat& format_named(const std::string& name) {
  for (const FileFormat& format : file_formats())
    if (format.name == name) return format;
  ADD_FAILURE() << "no format " << name;
  return file_formats().front();
}

/// "pipelines.stages.layers" of every documented key, and "pipelines.stages" of every table.
std::set<std::string> documented_keys(const FileFormat& format) {
  std::set<std::string> keys;
  for (const FileTable& table : format.tables) {
    std::string prefix;
    for (const char c : table.name)
      if (c != '[' && c != ']') prefix += c;
    if (!prefix.empty()) keys.insert(prefix);
    for (const FileKey& key : table.keys) keys.insert(prefix.empty() ? key.name : prefix + "." + key.name);
  }
  return keys;
}

GpuCatalogue catalogue() {
  auto loaded = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml");
  EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().what);
  return *loaded;
}

/// The text of tests/data/formats/NAME: a file with every table.
std::string every_table(const std::string& name) {
  const auto text = read_text_file(SAILOR_SOURCE_DIR "/tests/data/formats/" + name);
  EXPECT_TRUE(text) << (text ? "" : text.error().what);
  return text ? *text : "";
}

template <class Parse>
void expect_complete(const std::string& name, const std::string& file, const Parse& parse) {
  const std::string text = every_table(file);
  std::set<std::string> asked_for;
  {
    const TomlKeyRecorder recorder;
    const auto parsed = parse(text);
    EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().what);
    asked_for = recorder.keys();
  }
  EXPECT_EQ(asked_for, documented_keys(format_named(name))) << "see src/apps/reference";
  const auto example = parse(format_named(name).example);
  EXPECT_TRUE(example) << "the example of " << name << ": " << (example ? "" : example.error().what);
}

TEST(Reference, PlanTomlHasEveryKeyThatItsReaderAsksFor) {
  expect_complete("plan.toml", "plan.toml", [](const std::string& text) { return parse_plan(text, "plan.toml"); });
}

TEST(Reference, ClusterTomlHasEveryKeyThatItsReaderAsksFor) {
  const GpuCatalogue gpus = catalogue();
  expect_complete("cluster.toml", "cluster.toml",
                  [&](const std::string& text) { return parse_cluster(text, "cluster.toml", gpus); });
}

TEST(Reference, SiteFilesHaveEveryKeyThatTheirReaderAsksFor) {
  const GpuCatalogue gpus = catalogue();
  expect_complete("sailor-site", "site.toml",
                  [&](const std::string& text) { return slurm::parse_site(text, "site.toml", gpus); });
}

TEST(Reference, ModelFilesHaveEveryKeyThatTheirReaderAsksFor) {
  expect_complete("sailor-model", "model.toml",
                  [](const std::string& text) { return parse_model(text, "model.toml"); });
}

TEST(Reference, TheGpuCatalogueHasEveryKeyThatItsReaderAsksFor) {
  expect_complete("sailor-gpus", "gpus.toml",
                  [](const std::string& text) { return GpuCatalogue::parse(text, "gpus.toml"); });
}

CommandLine sample_line() {
  return {
      .program = "sailor-sample",
      .purpose = "shows what a page has",
      .positionals = {{.name = "PLAN", .help = "a plan"}},
      .options = {{.name = "kind", .value_name = "KIND", .help = "what's it: a 'thing' [sic]", .choices = {"a", "b"}},
                  {.name = "dots", .value_name = "FILE", .help = ".hidden file; or \\backslash|bar"}},
      .examples = {{"sailor-sample --kind a plan.toml", "an example"}},
      .exit_statuses = {{0, "done"}, {7, "it is Sunday"}}};
}

TEST(Reference, AManualPageEscapesWhatRoffWouldTakeForARequest) {
  const std::string page = manual_page(ProgramReference{"sailor-sample", "shows what a page has", {sample_line()}});
  EXPECT_NE(page.find("\n\\&.hidden file; or \\ebackslash|bar\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\\fB\\-\\-kind\\fR \\fIKIND\\fR\n"), std::string::npos) << page;
  EXPECT_NE(page.find(".SH EXIT STATUS\n.TP\n0\ndone\n.TP\n7\nit is Sunday\n"), std::string::npos) << page;
}

TEST(Reference, AMarkdownTableHasNoCellThatEndsEarly) {
  const std::string page = markdown_page(ProgramReference{"sailor-sample", "shows what a page has", {sample_line()}});
  EXPECT_NE(page.find("| `--dots FILE` | .hidden file; or \\\\backslash\\|bar |  |"), std::string::npos) << page;
}

TEST(Reference, GenerateNamesTheKindsThatItKnows) {
  const auto wrong = generate(ProgramReference{"sailor-sample", "", {sample_line()}}, {"--generate", "html"});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::usage);
  EXPECT_EQ(wrong.error().what, "--generate cannot make 'html'");
  EXPECT_EQ(wrong.error().hint, "use one of: man, markdown, bash, zsh, fish, or: all FOLDER");
}

TEST(Reference, HelpListsWhatEachExitStatusMeans) {
  EXPECT_NE(help_text(sample_line()).find("\nExit status:\n  0   done\n  7   it is Sunday\n"), std::string::npos)
      << help_text(sample_line());
}

}  // namespace
}  // namespace sailor::apps::reference_test
