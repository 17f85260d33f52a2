#include "profile/traces/torch_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/text.hpp"

namespace sailor::traces {

namespace {

/// The fields of one event, as far as they matter.
struct Event {
  std::string phase;
  std::string category;
  std::string name;
  std::string process;
  std::string thread;
  double begin = std::numeric_limits<double>::quiet_NaN();     // microseconds
  double duration = std::numeric_limits<double>::quiet_NaN();  // microseconds
  std::int64_t external = -1;
  std::int64_t correlation = -1;
  std::int64_t sequence = -1;
  std::int64_t device = 0;
  std::string group;
  std::int64_t group_size = 0;
};

struct Launch {
  std::int64_t id;
  double begin;
  int thread;
};

/// Kernels are matched with their launches when all is read.
struct Unmatched {
  std::int64_t correlation;
  std::int64_t external;
};

constexpr std::int64_t largest_integer = std::int64_t{1} << 53;

/// Receives the parts of the JSON in the order of the file.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool binary(binary_t&) override { return true; }

  bool string(string_t& value) override {
    if (in_event()) {
      if (auto* text = text_field()) *text = value;
    } else if (in_arguments()) {
      if (key_ == "Process Group Description" || (key_ == "Process Group Name" && event_.group.empty()))
        event_.group = value;
      else
        number_from(value);
    } else if (depth_ == 1 && key_ == "host_name") {
      recording_.host = value;
    } else if (devices_ && depth_ == 3 && key_ == "name" && recording_.device.empty()) {
      recording_.device = value;
    } else if (depth_ == 1 && (key_ == "cuda_runtime_version" || key_ == "hip_runtime_version")) {
      runtime(value);
    }
    return true;
  }
  bool key(string_t& value) override {
    key_ = value;
    if (depth_ == 1) {
      events_ = value == "traceEvents";
      devices_ = value == "deviceProperties";
      is_trace_ = is_trace_ || events_;
    }
    if (depth_ == event_depth_ && events_) arguments_ = value == "args";
    return true;
  }
  bool start_object(std::size_t) override {
    ++depth_;
    if (in_event()) event_ = Event();
    return true;
  }
  bool end_object() override {
    if (in_event()) add();
    if (depth_ == event_depth_ + 1) arguments_ = false;
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) {  // a bare list of events
      events_ = is_trace_ = true;
      event_depth_ = 2;
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception& error) override {
    const std::string_view reason = error.what();
    const auto begin = reason.find("] ");
    problem_ = fmt::format("byte {}: {}", position,
                           valid_utf8(begin == std::string_view::npos ? token : std::string(reason.substr(begin + 2))));
    return false;
  }

  Result<Recording> take(std::string_view file) {
    if (!problem_.empty())
      return fail(ErrorCode::invalid_input, fmt::format("{}: {}", file, problem_),
                  "the trace is damaged or was cut off: export it again");
    if (!is_trace_)
      return fail(ErrorCode::invalid_input, fmt::format("{}: this JSON is no trace: it has no traceEvents", file),
                  "write one with torch.profiler's export_chrome_trace()");
    match_launches();
    recording_.names = names_.take();
    return std::move(recording_);
  }

 private:
  [[nodiscard]] bool in_event() const { return events_ && depth_ == event_depth_; }
  [[nodiscard]] bool in_arguments() const { return events_ && arguments_ && depth_ == event_depth_ + 1; }

  std::string* text_field() {
    if (key_ == "ph") return &event_.phase;
    if (key_ == "cat") return &event_.category;
    if (key_ == "name") return &event_.name;
    if (key_ == "pid") return &event_.process;
    if (key_ == "tid") return &event_.thread;
    return nullptr;
  }
  bool number(double value) {
    if (in_event()) {
      if (key_ == "ts")
        event_.begin = value;
      else if (key_ == "dur")
        event_.duration = value;
      else if (auto* text = text_field())
        *text = fmt::format("{}", value);
    } else if (in_arguments()) {
      argument(value);
    } else if (depth_ == 1 && (key_ == "cuda_runtime_version" || key_ == "hip_runtime_version")) {
      if (value >= 1000.0 && value < 1e9)
        runtime(fmt::format("{}.{}", static_cast<int>(value) / 1000, static_cast<int>(value) % 1000 / 10));
    }
    return true;
  }
  void runtime(std::string_view version) {
    recording_.versions = fmt::format("{} {}", key_.starts_with("hip") ? "HIP" : "CUDA", version);
  }
  /// Older versions write numbers of arguments as strings.
  void number_from(const std::string& text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) argument(static_cast<double>(value));
  }
  void argument(double value) {
    if (!(value >= 0.0 && value < static_cast<double>(largest_integer))) return;
    const auto integer = static_cast<std::int64_t>(value);
    if (key_ == "External id" || key_ == "external id")
      event_.external = integer;
    else if (key_ == "correlation")
      event_.correlation = integer;
    else if (key_ == "Sequence number")
      event_.sequence = integer;
    else if (key_ == "device")
      event_.device = std::min<std::int64_t>(integer, std::numeric_limits<int>::max());
    else if (key_ == "Group size")
      event_.group_size = std::min<std::int64_t>(integer, std::numeric_limits<int>::max());
  }

  void add() {
    if (event_.phase != "X" || !std::isfinite(event_.begin) || !(event_.duration >= 0.0) ||
        !std::isfinite(event_.duration))
      return;
    if (!first_) first_ = event_.begin;
    Span span{.begin = (event_.begin - *first_) * 1e-6,
              .end = (event_.begin - *first_ + event_.duration) * 1e-6,
              .thread = 0,
              .name = 0};
    const std::string category = to_lower(event_.category);
    const bool module = category == "python_function" && event_.name.starts_with("nn.Module: ");
    const bool operation = category == "cpu_op" || category == "operator";
    const bool kernel = category == "kernel";
    const bool launch = category == "cuda_runtime" || category == "cuda_driver" || category == "runtime" ||
                        category == "hip_runtime" || category == "hip_driver";
    const bool annotation = category == "user_annotation" || module;
    if (!operation && !kernel && !launch && !annotation) return;
    if (kernel) {
      recording_.kernels.push_back({.begin = span.begin,
                                    .end = span.end,
                                    .name = names_.number(event_.name),
                                    .device = static_cast<int>(event_.device),
                                    .group = event_.group.empty() ? -1 : names_.number(event_.group),
                                    .group_size = static_cast<int>(event_.group_size)});
      unmatched_.push_back({event_.correlation, event_.external});
      return;
    }
    span.thread = threads_.number(event_.process + "\n" + event_.thread);
    if (launch) {
      if (event_.correlation >= 0) launches_.push_back({event_.correlation, span.begin, span.thread});
      return;
    }
    span.name = names_.number(event_.name);
    if (annotation) {
      recording_.annotations.push_back(span);
      return;
    }
    if (event_.external >= 0) externals_.push_back({event_.external, span.begin, span.thread});
    recording_.operations.push_back({span, event_.sequence});
  }

  /// Sets when and where kernels were launched: by their correlation, else by the operation that they belong to.
  void match_launches() {
    auto by_id = [](const Launch& a, const Launch& b) { return a.id < b.id; };
    std::stable_sort(launches_.begin(), launches_.end(), by_id);
    std::stable_sort(externals_.begin(), externals_.end(), by_id);
    auto find = [&](const std::vector<Launch>& launches, std::int64_t id) -> const Launch* {
      const auto found = std::lower_bound(launches.begin(), launches.end(), Launch{id, 0.0, 0}, by_id);
      return id >= 0 && found != launches.end() && found->id == id ? &*found : nullptr;
    };
    for (std::size_t i = 0; i < unmatched_.size(); ++i) {
      const Launch* launch = find(launches_, unmatched_[i].correlation);
      if (launch == nullptr) launch = find(externals_, unmatched_[i].external);
      if (launch == nullptr) continue;
      recording_.kernels[i].launched = launch->begin;
      recording_.kernels[i].launcher = launch->thread;
    }
  }

  Recording recording_;
  Names names_;
  Names threads_;
  std::vector<Launch> launches_;
  std::vector<Launch> externals_;  // operations, by External id
  std::vector<Unmatched> unmatched_;
  std::optional<double> first_;
  Event event_;
  std::string key_;
  std::string problem_;
  int depth_ = 0;
  int event_depth_ = 3;
  bool events_ = false;
  bool devices_ = false;
  bool arguments_ = false;
  bool is_trace_ = false;
};

}  // namespace

Result<Recording> read_torch_trace(std::istream& stream, std::string_view file) {
  Reader reader;
  nlohmann::json::sax_parse(stream, &reader);
  return reader.take(file);
}

}  // namespace sailor::traces
