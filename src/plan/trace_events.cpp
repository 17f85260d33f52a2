#include "plan/trace_events.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/files.hpp"
#include "core/text.hpp"

namespace sailor {

Nanoseconds nanoseconds(Seconds time) { return std::llround(time.value() * 1e9); }

std::string json_text(std::string_view text) { return nlohmann::json(valid_utf8(text)).dump(); }

void TraceEvents::begin(std::string_view about) {
  out_ = fmt::format("{{\"displayTimeUnit\":\"ms\",\n\"otherData\":{},\n\"traceEvents\":[", about);
}

void TraceEvents::process(int process, std::string_view name) {
  out_ += first_ ? "\n" : ",\n";
  first_ = false;
  append(out_,
         R"({{"ph":"M","pid":{0},"name":"process_name","args":{{"name":{1}}}}},)"
         "\n"
         R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}})",
         process, json_text(name));
}

void TraceEvents::track(int process, std::size_t track, std::string_view name) {
  out_ += first_ ? "\n" : ",\n";
  first_ = false;
  append(out_,
         R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_name","args":{{"name":{2}}}}},)"
         "\n"
         R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_sort_index","args":{{"sort_index":{1}}}}})",
         process, track, json_text(name));
}

void TraceEvents::slice(int process, std::size_t track, Nanoseconds start, Nanoseconds end, std::string_view name,
                        std::string_view category, std::string_view args) {
  open("X", process, track, start);
  out_ += R"(,"dur":)";
  put(end - start);
  out_ += R"(,"name":)";
  put_text(name);
  out_ += R"(,"cat":)";
  put_text(category);
  put_args(args);
}

void TraceEvents::instant(int process, std::size_t track, Nanoseconds at, std::string_view name,
                          std::string_view category, std::string_view args) {
  open("i", process, track, at);
  out_ += R"(,"s":"t","name":)";
  put_text(name);
  out_ += R"(,"cat":)";
  put_text(category);
  put_args(args);
}

void TraceEvents::counter(int process, Nanoseconds at, std::string_view name, double value) {
  open("C", process, 0, at);
  out_ += R"(,"name":)";
  put_text(name);
  put_args(fmt::format(R"({{"value":{}}})", value));
}

void TraceEvents::arrow_end(int process, std::size_t track, Nanoseconds at, bool begins, std::size_t id,
                            std::string_view name) {
  open(begins ? "s" : "f", process, track, at);
  if (!begins) out_ += R"(,"bp":"e")";
  append(out_, R"(,"id":{},"name":)", id);
  put_text(name);
  out_ += R"(,"cat":)";
  put_text(name);
  out_ += '}';
}

Result<void> TraceEvents::flush() {
  if (out_.size() < (std::size_t{1} << 16)) return {};
  SAILOR_CHECK(sink_(out_));
  out_.clear();
  return {};
}

Result<void> TraceEvents::end() {
  out_ += "\n]}\n";
  return sink_(out_);
}

void TraceEvents::open(std::string_view phase, int process, std::size_t track, Nanoseconds at) {
  append(out_, R"({}{{"ph":"{}","pid":{},"tid":{},"ts":)", first_ ? "\n" : ",\n", phase, process, track);
  first_ = false;
  put(at);
}

void TraceEvents::put(Nanoseconds time) {
  const Nanoseconds size = std::abs(time);
  append(out_, "{}{}.{:03}", time < 0 ? "-" : "", size / 1000, size % 1000);
}

/// Most names need no escapes, and a trace has millions.
void TraceEvents::put_text(std::string_view text) {
  const bool is_plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (is_plain)
    out_.append("\"").append(text).append("\"");
  else
    out_ += json_text(text);
}

void TraceEvents::put_args(std::string_view args) {
  if (!args.empty()) out_.append(R"(,"args":)").append(args);
  out_ += '}';
}

Result<std::string> trace_text(const std::function<Result<void>(const TraceEvents::Sink&)>& write) {
  std::string text;
  SAILOR_CHECK(write([&](std::string_view piece) -> Result<void> {
    text += piece;
    return {};
  }));
  return text;
}

Result<void> save_trace_text(const std::filesystem::path& path,
                             const std::function<Result<void>(const TraceEvents::Sink&)>& write) {
  SAILOR_CHECK(check_can_write(path));
  return write_file_atomically(path, [&](const std::filesystem::path& temporary) -> Result<void> {
    const auto problem = [&](int number) {
      return fail(ErrorCode::io, fmt::format("cannot write '{}': {}", path.string(), system_message(number)));
    };
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(temporary.c_str(), "wb"), &std::fclose);
    if (file == nullptr) return problem(errno);
    SAILOR_CHECK(write([&](std::string_view piece) -> Result<void> {
      if (std::fwrite(piece.data(), 1, piece.size(), file.get()) == piece.size()) return {};
      return problem(errno);
    }));
    if (std::fclose(file.release()) != 0) return problem(errno);
    return {};
  });
}

}  // namespace sailor
