#include "core/log.hpp"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <utility>

namespace sailor {

namespace {

/// Names of files, nodes and variables may contain terminal controls: escape sequences, backspaces.
template <class Text>
void make_harmless(Text& text) {
  for (char& c : text)
    if (const auto byte = static_cast<unsigned char>(c); (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f)
      c = '?';
}

class HarmlessFormatter : public spdlog::formatter {
 public:
  explicit HarmlessFormatter(std::unique_ptr<spdlog::formatter> inner) : inner_(std::move(inner)) {}
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& to) override {
    inner_->format(message, to);
    make_harmless(to);
  }
  [[nodiscard]] std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<HarmlessFormatter>(inner_->clone());
  }

 private:
  std::unique_ptr<spdlog::formatter> inner_;
};

spdlog::level::level_enum level_of_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void start_logging(const std::string& program, bool verbose) {
  auto logger = std::make_shared<spdlog::logger>(program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<HarmlessFormatter>(std::make_unique<spdlog::pattern_formatter>("%n: %l: %v")));
  logger->set_level(verbose ? spdlog::level::debug : spdlog::level::info);
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

bool is_logged(LogLevel level) { return spdlog::should_log(level_of_spdlog(level)); }

void write_log(LogLevel level, const std::string& message) { spdlog::log(level_of_spdlog(level), message); }

void say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

int report(const std::string& program, const Error& error) {
  std::string text = fmt::format("{}: error: {}\n", program, error.message());
  make_harmless(text);
  say(text);
  return exit_status(error.code);
}

}  // namespace sailor
