#include "profile/traces/blocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "core/text.hpp"

namespace sailor::traces {

namespace {

constexpr const char* how_to_record =
    "name the blocks while recording: with record_function(f'layers.{i}'): x = layer(x) (or torch.cuda.nvtx.range for "
    "nsys), or record PyTorch's modules with with_stack=True";

bool earlier(const Span& a, const Span& b) {
  return std::tuple(a.thread, a.begin, -a.end) < std::tuple(b.thread, b.begin, -b.end);
}

/// Sorts, and leaves out what lies within another of the list.
template <class Item, class SpanOf>
std::vector<Item> outermost(std::vector<Item> items, SpanOf span) {
  std::sort(items.begin(), items.end(), [&](const Item& a, const Item& b) { return earlier(span(a), span(b)); });
  std::vector<Item> kept;
  for (const Item& item : items)
    if (kept.empty() || span(kept.back()).thread != span(item).thread || span(item).begin >= span(kept.back()).end)
      kept.push_back(item);
  return kept;
}

const Span& itself(const Span& span) { return span; }

/// The last of the items that begins at or before the time on the thread, if it contains the time.
template <class Item, class SpanOf>
const Item* item_at(const std::vector<Item>& items, int thread, double time, SpanOf span) {
  auto after = std::upper_bound(
      items.begin(), items.end(), std::pair(thread, time),
      [&](const auto& key, const Item& item) { return key < std::pair(span(item).thread, span(item).begin); });
  if (after == items.begin()) return nullptr;
  const Item& item = *std::prev(after);
  return span(item).thread == thread && time < span(item).end ? &item : nullptr;
}

/// "layers.12" -> "layers.#", and the numbers. Numbers are compared as text of one length: they may be long.
struct NumberedName {
  std::string pattern;
  std::vector<std::pair<std::size_t, std::string>> numbers;  // length and digits
  bool operator<(const NumberedName& other) const { return numbers < other.numbers; }
};
NumberedName numbered(const std::string& name) {
  NumberedName result;
  for (std::size_t i = 0; i < name.size();) {
    std::size_t end = i;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
    if (end == i) {
      result.pattern += name[i++];
      continue;
    }
    result.pattern += '#';
    result.numbers.emplace_back(end - i, name.substr(i, end - i));
    i = end;
  }
  return result;
}

bool is_backward_name(const std::string& name) {
  const std::string lower = to_lower(name);
  return lower.find("backward") != std::string::npos || lower.find("bwd") != std::string::npos;
}

bool is_optimizer_name(const std::string& name) {
  const std::string lower = to_lower(name);
  return lower.starts_with("optimizer") || lower.starts_with("enumerate(dataloader)");
}

/// Annotations of one pattern on one thread, in the order of time.
struct Family {
  std::string pattern;
  std::vector<Span> spans;
};

/// The spans of a family as passes over its members in ascending or descending order; incomplete passes are left out.
/// Empty: they are not `count` members, overlap, or do not follow one another so.
std::vector<BlockRange> passes_of(const Family& family, int count, bool descending, const Recording& recording) {
  const auto size = static_cast<std::size_t>(count);
  std::map<int, NumberedName> by_name;
  for (const Span& span : family.spans) by_name.try_emplace(span.name, numbered(recording.name(span.name)));
  const bool nameless = by_name.size() == 1;  // one name stands for each of them in turn
  if (by_name.size() != size && !(nameless && family.spans.size() % size == 0)) return {};
  for (std::size_t i = 1; i < family.spans.size(); ++i)
    if (family.spans[i].begin < family.spans[i - 1].end) return {};
  std::vector<int> order;
  for (const auto& [name, number] : by_name) order.push_back(name);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return by_name.at(a) < by_name.at(b); });
  std::map<int, int> member;
  for (std::size_t i = 0; i < order.size(); ++i) member[order[i]] = static_cast<int>(i);

  std::vector<BlockRange> ranges;
  std::vector<BlockRange> pass;
  int passes = 0;
  for (const Span& span : family.spans) {
    const int next = static_cast<int>(pass.size());
    const int expected = descending ? count - 1 - next : next;
    const int block = nameless ? expected : member.at(span.name);
    if (block != expected) {
      pass.clear();
      if (block != (descending ? count - 1 : 0)) continue;
    }
    pass.push_back({.begin = span.begin, .end = span.end, .block = block, .pass = passes});
    if (pass.size() < size) continue;
    ranges.insert(ranges.end(), pass.begin(), pass.end());
    pass.clear();
    ++passes;
  }
  return ranges;
}

std::vector<Family> families_of(const std::vector<Span>& annotations, const Recording& recording) {
  std::map<std::pair<int, std::string>, Family> families;
  std::map<int, std::string> patterns;
  for (const Span& span : annotations) {
    auto pattern = patterns.find(span.name);
    if (pattern == patterns.end())
      pattern = patterns.emplace(span.name, numbered(recording.name(span.name)).pattern).first;
    Family& family = families[{span.thread, pattern->second}];
    family.pattern = pattern->second;
    family.spans.push_back(span);
  }
  std::vector<Family> result;
  for (auto& [key, family] : families) {
    std::sort(family.spans.begin(), family.spans.end(), earlier);
    result.push_back(std::move(family));
  }
  return result;
}

double covered(const std::vector<BlockRange>& ranges) {
  double sum = 0.0;
  for (const BlockRange& range : ranges) sum += range.end - range.begin;
  return sum;
}

/// A family with its passes over the blocks.
struct Choice {
  const Family* family = nullptr;
  std::vector<BlockRange> ranges;
};

/// Whether a backward pass begins within one of the passes: its ranges are then iterations, not blocks. `begins`: of
/// autograd nodes, ascending.
bool holds_a_backward_pass(const std::vector<BlockRange>& ranges, std::size_t count,
                           const std::vector<double>& begins) {
  for (std::size_t first = 0; first + count <= ranges.size(); first += count) {
    const auto node = std::upper_bound(begins.begin(), begins.end(), ranges[first].begin);
    if (node != begins.end() && *node < ranges[first + count - 1].end) return true;
  }
  return false;
}

/// Chooses, of the families that pass over `count` members without a backward pass in between, the one that covers most
/// time.
Choice longest(const std::vector<Family>& families, int count, bool backward, const Recording& recording,
               const std::vector<double>& begins_of_nodes) {
  Choice best;
  for (const Family& family : families) {
    if (is_backward_name(family.pattern) != backward) continue;
    auto ranges = passes_of(family, count, backward, recording);
    if (ranges.empty() || holds_a_backward_pass(ranges, static_cast<std::size_t>(count), begins_of_nodes)) continue;
    if (best.family == nullptr || covered(ranges) > covered(best.ranges)) best = {&family, std::move(ranges)};
  }
  return best;
}

/// Where `count` equal series of operations follow one another: the first operation, and the length of a series.
struct Repetition {
  std::size_t first = 0;
  std::size_t period = 0;
};

/// The longest one; std::nullopt: there is none that holds at least half of the operations. Where the operation before
/// the series equals its last one, the series may begin earlier: it then begins with a norm if it can.
std::optional<Repetition> repetition_of(const std::vector<int>& names, std::size_t count,
                                        const std::vector<bool>& is_norm) {
  constexpr std::size_t longest_period = 5000;
  constexpr std::size_t most_operations = 50'000;  // of a forward pass; the search takes their number times the periods
  std::optional<Repetition> best;
  if (names.size() > most_operations) return best;
  for (std::size_t period = 1; period <= std::min(longest_period, names.size() / count); ++period) {
    for (std::size_t i = 0; i + period < names.size();) {
      std::size_t run = 0;
      while (i + run + period < names.size() && names[i + run] == names[i + run + period]) ++run;
      const std::size_t length = run + period;
      if (length / period == count && 2 * count * period >= names.size() && (!best || period > best->period)) {
        best = Repetition{i, period};
        for (std::size_t shift = 0; shift <= length - count * period; ++shift)
          if (is_norm[i + shift]) {
            best->first = i + shift;
            break;
          }
      }
      i += run + 1;
    }
  }
  return best;
}

/// Blocks by the operations that a forward pass repeats.
std::vector<BlockRange> repeated_blocks(const std::vector<Operation>& operations, const Timeline& timeline, int count,
                                        const Recording& recording) {
  std::vector<double> backward;  // begins of nodes
  for (const Node& node : timeline.backward) backward.push_back(node.span.begin);
  std::sort(backward.begin(), backward.end());
  std::vector<BlockRange> ranges;
  int passes = 0;
  auto look_at = [&](std::size_t first, std::size_t last) {
    std::vector<int> names;
    std::vector<bool> is_norm;
    for (std::size_t i = first; i < last; ++i) {
      names.push_back(operations[i].name);
      is_norm.push_back(to_lower(recording.name(operations[i].name)).find("norm") != std::string::npos);
    }
    const auto found = repetition_of(names, static_cast<std::size_t>(count), is_norm);
    if (!found) return;
    for (int block = 0; block < count; ++block) {
      const std::size_t begin = first + found->first + static_cast<std::size_t>(block) * found->period;
      ranges.push_back({.begin = operations[begin].begin,
                        .end = operations[begin + found->period - 1].end,
                        .block = block,
                        .pass = passes});
    }
    ++passes;
  };
  std::size_t first = 0;
  for (std::size_t i = 1; i <= operations.size(); ++i) {
    bool ends = i == operations.size();
    if (!ends) {
      const auto next = std::lower_bound(backward.begin(), backward.end(), operations[i - 1].begin);
      ends = next != backward.end() && *next < operations[i].begin;
    }
    if (!ends) continue;
    if (i - first >= static_cast<std::size_t>(count)) look_at(first, i);
    first = i;
  }
  return ranges;
}

/// "'layers.#' (24)": annotations that there are, most frequent patterns first.
std::string annotations_text(const std::vector<Family>& families) {
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const Family& family : families) found.emplace_back(family.spans.size(), family.pattern);
  std::sort(found.begin(), found.end(), std::greater<>());
  std::vector<std::string> texts;
  for (const auto& [spans, pattern] : found) {
    texts.push_back(fmt::format("'{}' ({})", valid_utf8(pattern.substr(0, 60)), spans));
    if (texts.size() == 4) break;
  }
  return texts.empty() ? "it has no annotations" : fmt::format("annotations that it has: {}", join(texts, ", "));
}

}  // namespace

bool is_in_step(const Timeline& timeline, double time) {
  return timeline.steps.empty() || std::any_of(timeline.steps.begin(), timeline.steps.end(),
                                               [&](const Span& step) { return time >= step.begin && time < step.end; });
}

const Span* span_at(const std::vector<Span>& spans, int thread, double time) {
  return item_at(spans, thread, time, itself);
}
const Node* node_at(const std::vector<Node>& nodes, int thread, double time) {
  return item_at(nodes, thread, time, [](const Node& node) -> const Span& { return node.span; });
}

Result<Timeline> find_timeline(const Recording& recording, int count, std::string_view file) {
  Timeline timeline;
  std::vector<bool> is_step;
  std::vector<bool> is_optimizer;
  std::vector<bool> is_node;
  std::vector<bool> is_checkpoint;
  for (const std::string& name : recording.names) {
    is_step.push_back(name.starts_with("ProfilerStep#"));
    is_optimizer.push_back(is_optimizer_name(name));
    is_node.push_back(name.starts_with(autograd_node));
    is_checkpoint.push_back(name == std::string(autograd_node) + "CheckpointFunctionBackward");
  }
  auto has = [](const std::vector<bool>& which, const Span& span) {
    return which[static_cast<std::size_t>(span.name)];
  };
  std::vector<Span> annotations;
  for (const Span& span : recording.annotations) {
    if (has(is_step, span))
      timeline.steps.push_back(span);
    else if (has(is_optimizer, span))
      timeline.optimizer.push_back(span);
    else if (!has(is_node, span))
      annotations.push_back(span);
  }
  timeline.steps = outermost(std::move(timeline.steps), itself);
  timeline.optimizer = outermost(std::move(timeline.optimizer), itself);
  std::vector<Node> nodes;
  std::map<int, int> forward_operations;  // by thread
  for (const Operation& operation : recording.operations) {
    if (has(is_node, operation)) {
      nodes.push_back({.span = operation, .sequence = operation.sequence});
      timeline.recomputes = timeline.recomputes || has(is_checkpoint, operation);
    } else if (operation.sequence >= 0) {
      ++forward_operations[operation.thread];
    }
  }
  timeline.backward = outermost(std::move(nodes), [](const Node& node) -> const Span& { return node.span; });

  std::vector<Span> of_forward;
  std::set<int> again;  // names of annotations within the backward pass
  for (const Span& span : annotations) {
    if (!is_in_step(timeline, span.begin)) continue;
    if (node_at(timeline.backward, span.thread, span.begin) != nullptr)
      again.insert(span.name);
    else
      of_forward.push_back(span);
  }
  const auto families = families_of(of_forward, recording);
  std::vector<double> begins;
  for (const Node& node : timeline.backward) begins.push_back(node.span.begin);
  std::sort(begins.begin(), begins.end());
  if (const Choice choice = longest(families, count, false, recording, begins); choice.family != nullptr) {
    timeline.blocks = choice.ranges;
    timeline.forward_thread = choice.family->spans.front().thread;
    timeline.by_annotation = true;
    timeline.found_by = fmt::format("annotations '{}'", valid_utf8(choice.family->pattern));
    for (const Span& span : choice.family->spans)
      timeline.recomputes = timeline.recomputes || again.contains(span.name);
    if (const Choice backward = longest(families, count, true, recording, {});
        timeline.backward.empty() && backward.family != nullptr) {
      const int thread = backward.family->spans.front().thread;
      for (const BlockRange& range : backward.ranges)
        timeline.backward.push_back({.span = {.begin = range.begin, .end = range.end, .thread = thread},
                                     .pass = range.pass,
                                     .block = range.block});
      timeline.found_by += fmt::format(" and '{}'", valid_utf8(backward.family->pattern));
    }
  } else if (!forward_operations.empty()) {
    timeline.forward_thread =
        std::max_element(forward_operations.begin(), forward_operations.end(), [](const auto& a, const auto& b) {
          return a.second < b.second;
        })->first;
    std::vector<Operation> operations;
    for (const Operation& operation : recording.operations)
      if (operation.thread == timeline.forward_thread && is_in_step(timeline, operation.begin) &&
          span_at(timeline.optimizer, operation.thread, operation.begin) == nullptr &&
          node_at(timeline.backward, operation.thread, operation.begin) == nullptr)
        operations.push_back(operation);
    operations = outermost(std::move(operations), [](const Operation& operation) -> const Span& { return operation; });
    timeline.blocks = repeated_blocks(operations, timeline, count, recording);
    timeline.found_by = "operations that repeat";
  }
  if (timeline.blocks.empty())
    return fail(ErrorCode::invalid_input,
                fmt::format("{}: where the {} blocks of the model begin and end cannot be told: no annotations name so "
                            "many one after the other, and no operations repeat so often ({})",
                            file, count, annotations_text(families)),
                fmt::format("if it is of other layers than all, name them with --layers; else {}", how_to_record));
  if (timeline.backward.empty())
    return fail(ErrorCode::invalid_input, fmt::format("{}: there is no backward pass", file),
                recording.operations.empty()
                    ? "record operations, too: torch.profiler with ProfilerActivity.CPU, nsys with "
                      "torch.autograd.profiler.emit_nvtx() or --pytorch=autograd-nvtx"
                    : "record whole steps of a training, with loss.backward()");
  timeline.passes = timeline.blocks.back().pass + 1;
  return timeline;
}

}  // namespace sailor::traces
