#include "core/log.hpp"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdio>
#include <memory>

namespace sailor {

void start_logging(const std::string& program, bool verbose) {
  auto logger = std::make_shared<spdlog::logger>(program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%n: %l: %v");
  logger->set_level(verbose ? spdlog::level::debug : spdlog::level::info);
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

void say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

int report(const std::string& program, const Error& error) {
  say(fmt::format("{}: error: {}\n", program, error.message()));
  return exit_status(error.code);
}

}  // namespace sailor
