#include "preflight/fabric.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/parse.hpp"
#include "core/process.hpp"
#include "core/text.hpp"

namespace sailor::preflight {

namespace {

/// Names are short words; anything else is not output of fi_info.
bool is_name(std::string_view text) {
  constexpr std::size_t longest = 128;
  return !text.empty() && text.size() <= longest &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

std::vector<FabricProvider> parse_fi_info(std::string_view text) {
  constexpr std::size_t most = 256;  // of providers, and of domains of each
  std::vector<FabricProvider> providers;
  FabricProvider* now = nullptr;
  // "provider: cxi", then indented "fabric: cxi", "domain: cxi0", "version: 0.1", ... for each way to use it
  for (const std::string& line : split(text, '\n')) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view key = trimmed(std::string_view(line).substr(0, colon));
    const std::string_view value = trimmed(std::string_view(line).substr(colon + 1));
    if (key == "provider") {
      now = nullptr;
      if (!is_name(value)) continue;
      auto known = std::find_if(providers.begin(), providers.end(),
                                [&](const FabricProvider& provider) { return provider.name == value; });
      if (known == providers.end() && providers.size() == most) continue;
      if (known == providers.end())
        known = providers.insert(providers.end(), FabricProvider{.name = std::string(value)});
      now = &*known;
    } else if (key == "domain" && now != nullptr && is_name(value) && now->domains.size() < most &&
               std::find(now->domains.begin(), now->domains.end(), value) == now->domains.end()) {
      now->domains.emplace_back(value);
    }
  }
  std::sort(providers.begin(), providers.end(),
            [](const FabricProvider& a, const FabricProvider& b) { return a.name < b.name; });
  for (FabricProvider& provider : providers) std::sort(provider.domains.begin(), provider.domains.end());
  return providers;
}

Result<std::vector<FabricProvider>> ask_fabric(Seconds deadline, const std::string& program) {
  const auto outcome = run_command({.arguments = {program}, .input = {}, .deadline = deadline});
  if (!outcome)
    return fail(ErrorCode::unavailable, outcome.error().code == ErrorCode::not_found
                                            ? fmt::format("{} is not in PATH", program)
                                            : outcome.error().what);
  if (!outcome->succeeded())
    return fail(ErrorCode::unavailable, fmt::format("{}: {}", program, outcome->how_it_ended()));
  auto providers = parse_fi_info(outcome->output);
  if (providers.empty()) return fail(ErrorCode::unavailable, fmt::format("{} names no provider", program));
  return providers;
}

}  // namespace sailor::preflight
