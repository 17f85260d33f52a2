#include "spank_plugin/job_size.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/parse.hpp"
#include "core/text.hpp"

namespace sailor::spank {

namespace {

/// "4" of "2-4"
std::optional<int> largest_of(std::string_view range) {
  const std::size_t dash = range.rfind('-');
  return parse_count(dash == std::string_view::npos ? range : range.substr(dash + 1));
}

/// "4" of "gpu:gh200:4,craynetwork:1"
std::optional<int> gpus_of(std::string_view gres) {
  std::optional<int> count;
  for (const std::string& part : split(gres, ',')) {
    if (!part.starts_with("gpu:") && !part.starts_with("gres:gpu:") && !part.starts_with("gres/gpu:")) continue;
    const auto own = parse_count(std::string_view(part).substr(part.rfind(':') + 1));
    if (!own) return std::nullopt;
    count = count.value_or(0) + *own;
  }
  return count;
}

void take(JobSize& size, std::string_view name, std::string_view value) {
  const auto set = [](std::optional<int>& field, std::optional<int> number) {
    if (number) field = number;
  };
  if (name == "-N" || name == "--nodes") set(size.nodes, largest_of(value));
  if (name == "-n" || name == "--ntasks") set(size.tasks, parse_count(value));
  if (name == "--ntasks-per-node" || name == "--tasks-per-node") set(size.tasks_per_node, parse_count(value));
  if (name == "--gres") set(size.gpus_per_node, gpus_of(value));
  // "4" or "gh200:4"
  if (name == "--gpus-per-node") set(size.gpus_per_node, parse_count(value.substr(value.rfind(':') + 1)));
}

/// Options in the order in which they stand: "-N2", "-N 2", "--nodes=2", "--nodes 2".
void take_all(JobSize& size, const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == ":" || word == "hetjob" || word == "packjob") size.heterogeneous = true;
    const bool last = i + 1 == words.size();
    if (word.starts_with("--")) {
      const std::size_t equals = word.find('=');
      if (equals != std::string::npos)
        take(size, std::string_view(word).substr(0, equals), std::string_view(word).substr(equals + 1));
      else if (!last)
        take(size, word, words[i + 1]);
    } else if (word.size() > 1 && (word.starts_with("-N") || word.starts_with("-n"))) {
      if (word.size() > 2)
        take(size, word.substr(0, 2), std::string_view(word).substr(2));
      else if (!last)
        take(size, word, words[i + 1]);
    }
  }
}

/// Whether the word after this option may be its value.
bool takes_next_word(std::string_view option) {
  constexpr std::array<std::string_view, 26> flags{
      "--usage",         "--verbose",      "--version", "--wait",       "--bell",       "--contiguous",
      "--exclusive",     "--get-user-env", "--help",    "--hold",       "--ignore-pbs", "--immediate",
      "--kill-command",  "--no-bell",      "--no-kill", "--no-requeue", "--no-shell",   "--overcommit",
      "--oversubscribe", "--parsable",     "--quiet",   "--reboot",     "--requeue",    "--spread-job",
      "--test-only",     "--use-min-nodes"};
  if (option.find('=') != std::string_view::npos) return false;
  if (!option.starts_with("--"))  // "-N2" has its value
    return option.size() == 2 && std::string_view("HIOQVWhksuv").find(option[1]) == std::string_view::npos;
  return std::find(flags.begin(), flags.end(), option) == flags.end();
}

/// The words of the #SBATCH lines above the first command; quotes only keep words together.
std::vector<std::string> directives_of(std::string_view script) {
  std::vector<std::string> words;
  for (const std::string& line : split(script, '\n')) {
    const std::string_view text = trimmed(line);
    if (text.empty()) continue;
    if (!text.starts_with('#')) break;
    if (!text.starts_with("#SBATCH")) continue;
    std::string word;
    char quote = '\0';
    for (const char c : text.substr(7)) {
      if (quote == '\0' && (c == '"' || c == '\'')) {
        quote = c;
      } else if (c == quote) {
        quote = '\0';
      } else if (quote == '\0' && (c == ' ' || c == '\t' || c == '#')) {
        if (!word.empty()) words.push_back(std::move(word));
        word.clear();
        if (c == '#') break;
      } else {
        word += c;
      }
    }
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

}  // namespace

JobSize size_of_job(const std::vector<std::string>& arguments,
                    const std::function<std::optional<std::string>(const std::string& path)>& read) {
  JobSize size;
  // What follows the script, or salloc's command, are its own words.
  std::size_t end = 0;
  std::optional<std::string> script;
  for (bool is_value = false; end < arguments.size(); ++end) {
    const std::string& word = arguments[end];
    if (word == "--") break;
    if (word.size() > 1 && word.starts_with("-")) {
      is_value = takes_next_word(word);
      continue;
    }
    script = read(word);
    if (script && !script->starts_with("#!")) script.reset();
    if (!is_value || script) break;
    is_value = false;
  }
  if (script) take_all(size, directives_of(*script));
  take_all(size, {arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(end)});
  if (std::find(arguments.begin(), arguments.end(), ":") != arguments.end()) size.heterogeneous = true;
  return size;
}

Result<void> check_size(const Plan& plan, const JobSize& size) {
  if (size.heterogeneous) return {};
  const int ranks = plan.ranks();
  const std::string remedy = "ask for at least --ntasks=" + std::to_string(ranks) + ", as sailor-submit does";
  std::optional<int> tasks = size.tasks;
  if (size.nodes && size.tasks_per_node) {
    const int most = *size.nodes * *size.tasks_per_node;
    tasks = std::min(tasks.value_or(most), most);
  }
  if (tasks && *tasks < ranks)
    return fail(ErrorCode::invalid_input,
                "the plan has " + std::to_string(ranks) + " ranks, but the job asks for " + std::to_string(*tasks) +
                    (*tasks == 1 ? " task" : " tasks"),
                remedy);
  const bool on_gpus = std::all_of(plan.pipelines.begin(), plan.pipelines.end(), [](const Pipeline& pipeline) {
    return std::none_of(pipeline.stages.begin(), pipeline.stages.end(),
                        [](const Stage& stage) { return stage.gpu.starts_with("cpu"); });
  });
  if (on_gpus && size.nodes && size.gpus_per_node && *size.nodes * *size.gpus_per_node < ranks)
    return fail(ErrorCode::invalid_input,
                "the plan has " + std::to_string(ranks) + " ranks, but the job asks for " +
                    std::to_string(*size.nodes * *size.gpus_per_node) + " GPUs",
                "ask for more nodes, or for more GPUs of each");
  return {};
}

}  // namespace sailor::spank
