#include "profile/traces/megatron_timers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "core/text.hpp"

namespace sailor::traces {

namespace {

constexpr std::array<std::string_view, 3> timer_names{"forward-compute", "backward-compute", "optimizer"};

/// The timers of one iteration, in milliseconds.
struct Record {
  std::array<std::optional<StageTimes::Range>, timer_names.size()> ranges{};
  std::array<std::map<int, double>, timer_names.size()> ranks{};
  [[nodiscard]] bool has(std::size_t timer) const { return ranges[timer].has_value() || !ranks[timer].empty(); }
};

bool is_part_of_a_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/// What follows a whole word in the line; std::nullopt: it is not there.
std::optional<std::string_view> after_word(std::string_view line, std::string_view word) {
  for (std::size_t at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_part_of_a_name(line[at - 1])) && (end == line.size() || !is_part_of_a_name(line[end])))
      return line.substr(end);
  }
  return std::nullopt;
}

std::string_view without(std::string_view text, std::string_view characters) {
  const std::size_t begin = text.find_first_not_of(characters);
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

/// Takes a number from the front; a negative or infinite one is none.
std::optional<double> take_number(std::string_view& text) {
  text = without(text, " \t");
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value < 0.0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

/// "(1.5, 2.5)" or "2.5".
std::optional<StageTimes::Range> range_in(std::string_view text) {
  text = without(text, " \t");
  if (!text.starts_with('(')) {
    const auto value = take_number(text);
    return value ? std::optional(StageTimes::Range{*value, *value}) : std::nullopt;
  }
  text.remove_prefix(1);
  const auto smallest = take_number(text);
  text = without(text, " \t");
  if (!smallest || !text.starts_with(',')) return std::nullopt;
  text.remove_prefix(1);
  const auto largest = take_number(text);
  if (!largest || *largest < *smallest) return std::nullopt;
  return StageTimes::Range{*smallest, *largest};
}

/// "........ 4": the value of an argument as Megatron prints it.
std::optional<std::string> argument_in(std::string_view line, std::string_view name) {
  auto rest = after_word(line, name);
  if (!rest || !rest->starts_with(' ')) return std::nullopt;
  *rest = without(*rest, " ");
  const std::string_view value = without(*rest, ".");
  if (value.size() == rest->size() || !value.starts_with(' ')) return std::nullopt;
  const std::string_view text = without(value, " ");
  return std::string(text.substr(0, text.find_last_not_of(" \t\r") + 1));
}

class Log {
 public:
  void read(std::istream& stream) {
    std::string line;
    while (std::getline(stream, line)) {
      if (line.find("...") != std::string::npos) read_argument(line);
      if (const auto rest = after_word(line, "global batch size"); rest && rest->starts_with(':')) {
        std::string_view text = rest->substr(1);
        if (const auto value = take_number(text)) global_batch_ = *value;
      }
      read_timers(line);
    }
    finish();
  }

  [[nodiscard]] std::optional<std::string> argument(const std::string& name) const {
    const auto found = arguments_.find(name);
    return found == arguments_.end() ? std::nullopt : std::optional(found->second);
  }
  /// An argument that is a positive number.
  [[nodiscard]] std::optional<int> number(const std::string& name) const {
    const auto text = argument(name);
    int value = 0;
    if (!text) return std::nullopt;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size() || value < 1) return std::nullopt;
    return value;
  }
  [[nodiscard]] double global_batch() const { return global_batch_; }
  [[nodiscard]] const std::vector<Record>& records() const { return records_; }

 private:
  void read_argument(const std::string& line) {
    for (const char* name :
         {"micro_batch_size", "global_batch_size", "seq_length", "num_layers", "hidden_size", "data_parallel_size",
          "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
          "expert_model_parallel_size", "bf16", "fp16", "fp8", "recompute_granularity", "recompute_method",
          "recompute_num_layers", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"})
      if (auto value = argument_in(line, name)) {
        arguments_[name] = *std::move(value);
        return;
      }
  }

  void read_timers(const std::string& line) {
    if (line.find("across ranks (ms)") != std::string::npos || line.find("time (ms) |") != std::string::npos) finish();
    bool named = false;
    for (std::size_t timer = 0; timer < timer_names.size(); ++timer) {
      const auto rest = after_word(line, timer_names[timer]);
      if (!rest) continue;
      const std::string_view values = without(*rest, " .");
      if (!values.starts_with(':')) continue;
      named = true;
      current_timer_ = timer;
      if (const auto range = range_in(values.substr(1))) record_.ranges[timer] = *range;
    }
    if (named) return;
    // "rank  0: 12.34" below the name of a timer
    if (auto rest = after_word(line, "rank"); rest && current_timer_) {
      const auto rank = take_number(*rest);
      *rest = without(*rest, " ");
      if (rank && *rank < 1e9 && rest->starts_with(':')) {
        rest->remove_prefix(1);
        if (const auto value = take_number(*rest)) record_.ranks[*current_timer_][static_cast<int>(*rank)] = *value;
        return;
      }
    }
    current_timer_.reset();
  }

  void finish() {
    if (record_.has(0) && record_.has(1)) records_.push_back(std::move(record_));
    record_ = Record();
    current_timer_.reset();
  }

  std::map<std::string, std::string> arguments_;
  double global_batch_ = 0.0;  // sequences; of the latest iteration
  std::vector<Record> records_;
  Record record_;
  std::optional<std::size_t> current_timer_;
};

Result<TrainingFacts> facts_of(const Log& log, const Model& model, std::string_view file) {
  auto differs = [&](const char* name, int wanted) -> Result<void> {
    const auto value = log.number(name);
    if (!value || *value == wanted) return {};
    return fail(ErrorCode::invalid_input,
                fmt::format("{}: {} is {} in the log, but {} in {}", file, name, *value, wanted, model.name),
                "name the model that was trained with --model");
  };
  SAILOR_CHECK(differs("num_layers", model.blocks));
  SAILOR_CHECK(differs("hidden_size", model.hidden));
  for (const char* name : {"context_parallel_size", "expert_model_parallel_size"})
    if (log.number(name).value_or(1) != 1)
      return fail(ErrorCode::invalid_input, fmt::format("{}: {} is {}", file, name, *log.number(name)),
                  "profiles hold whole sequences and all experts: import a log of a training without");
  for (const char* name : {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"})
    if (log.number(name))
      return fail(ErrorCode::invalid_input, fmt::format("{}: the stages have different numbers of layers", file),
                  fmt::format("import a log of a training without {}", name));
  TrainingFacts facts;
  facts.micro_batch = log.number("micro_batch_size");
  facts.sequence_length = log.number("seq_length");
  facts.tensor_parallel = log.number("tensor_model_parallel_size");
  if (log.argument("fp8").value_or("None") != "None")
    facts.precision = Precision::fp8;
  else if (log.argument("bf16") == "True")
    facts.precision = Precision::bf16;
  else if (log.argument("fp16") == "True")
    facts.precision = Precision::fp16;
  const auto granularity = log.argument("recompute_granularity");
  if (granularity == "None") facts.recompute = Recompute::none;
  if (granularity == "selective") facts.recompute = Recompute::selective;
  if (granularity == "full") {
    if (log.argument("recompute_method") == "block" && log.number("recompute_num_layers").value_or(0) < model.blocks)
      return fail(ErrorCode::invalid_input, fmt::format("{}: only a part of the blocks is recomputed", file),
                  "import a log of a training with --recompute-method uniform, or without recomputation");
    facts.recompute = Recompute::full;
  }
  const auto data_parallel = log.number("data_parallel_size");
  const double global_batch =
      log.global_batch() > 0.0 ? log.global_batch() : log.number("global_batch_size").value_or(0);
  if (facts.micro_batch && data_parallel && global_batch > 0.0) {
    const double each = global_batch / *facts.micro_batch / *data_parallel;
    if (each < 1.0 || each != std::floor(each) || each > 1e6)
      return fail(ErrorCode::invalid_input,
                  fmt::format("{}: a global batch of {} sequences is no multiple of {} ranks' micro-batches of {}",
                              file, global_batch, *data_parallel, *facts.micro_batch));
    facts.gradient_accumulation = static_cast<int>(each);
  }
  return facts;
}

}  // namespace

Result<MegatronTimers> read_megatron_timers(std::istream& stream, const Model& model, const TrainingFacts& given,
                                            std::string_view file) {
  Log log;
  log.read(stream);
  if (log.records().empty())
    return fail(ErrorCode::invalid_input,
                fmt::format("{}: the log has no iteration with the timers forward-compute and backward-compute", file),
                "train with --timing-log-level 2 (and --timing-log-option minmax, or all with several stages)");
  auto of_log = facts_of(log, model, file);
  if (!of_log) return fail(of_log.error());
  auto facts = joined(*of_log, given, file);
  if (!facts) return fail(facts.error());
  if (!facts->gradient_accumulation)
    return fail(ErrorCode::usage,
                fmt::format("{}: the log does not say how many micro-batches an iteration has on a rank", file),
                "add --gradient-accumulation N: global batch / (micro-batch x data-parallel ranks)");
  const int stages = log.number("pipeline_model_parallel_size").value_or(1);
  const double per_second = 1e-3 / *facts->gradient_accumulation;

  MegatronTimers result{.facts = *facts};
  const std::size_t first = log.records().size() > 2 ? 1 : 0;
  result.left_out = static_cast<int>(first);
  if (stages == 1) {
    MegatronStage stage{.layers = facts->layers};
    for (std::size_t i = first; i < log.records().size(); ++i) {
      const Record& record = log.records()[i];
      auto range = [&](std::size_t timer) -> StageTimes::Range {
        if (record.ranges[timer]) return *record.ranges[timer];
        const auto [least, most] =
            std::minmax_element(record.ranks[timer].begin(), record.ranks[timer].end(),
                                [](const auto& a, const auto& b) { return a.second < b.second; });
        return {least->second, most->second};
      };
      auto scaled = [](StageTimes::Range range, double factor) {
        return StageTimes::Range{range.smallest * factor, range.largest * factor};
      };
      StageTimes times{.forward = scaled(range(0), per_second), .backward = scaled(range(1), per_second)};
      if (record.has(2)) times.update = scaled(range(2), 1e-3);
      stage.iterations.push_back(times);
    }
    result.stages.push_back(std::move(stage));
    return result;
  }

  // Stages follow one another in the order of ranks: ranks of one stage are neighbours.
  if (facts->layers)
    return fail(ErrorCode::usage, fmt::format("{}: the log says which layers its {} stages have", file, stages),
                "leave out --layers");
  if (model.blocks % stages != 0)
    return fail(ErrorCode::invalid_input,
                fmt::format("{}: {} stages cannot share {} blocks evenly", file, stages, model.blocks));
  const int blocks = model.blocks / stages;
  for (int stage = 0; stage < stages; ++stage)
    result.stages.push_back(
        {.layers = LayerRange{.first = stage == 0 ? 0 : 1 + stage * blocks,
                              .last = stage == stages - 1 ? model.layers() : 1 + (stage + 1) * blocks}});
  for (std::size_t i = first; i < log.records().size(); ++i) {
    const Record& record = log.records()[i];
    const int ranks = record.ranks[0].empty() ? 0 : record.ranks[0].rbegin()->first + 1;
    if (ranks == 0 || ranks % stages != 0)
      return fail(ErrorCode::invalid_input,
                  fmt::format("{}: the timers are not those of each of the {} stages", file, stages),
                  "train with --timing-log-option all, or with --pipeline-model-parallel-size 1");
    for (int stage = 0; stage < stages; ++stage) {
      auto range = [&](std::size_t timer, double factor) -> std::optional<StageTimes::Range> {
        std::optional<StageTimes::Range> found;
        for (const auto& [rank, time] : record.ranks[timer]) {
          if (rank / (ranks / stages) != stage) continue;
          if (!found) found = StageTimes::Range{time * factor, time * factor};
          found->smallest = std::min(found->smallest, time * factor);
          found->largest = std::max(found->largest, time * factor);
        }
        return found;
      };
      const auto forward = range(0, per_second);
      const auto backward = range(1, per_second);
      if (!forward || !backward)
        return fail(ErrorCode::invalid_input, fmt::format("{}: an iteration has no times of stage {}", file, stage));
      result.stages[static_cast<std::size_t>(stage)].iterations.push_back(
          {.forward = *forward, .backward = *backward, .update = range(2, 1e-3)});
    }
  }
  return result;
}

}  // namespace sailor::traces
