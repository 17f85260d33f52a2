#include "runtime/control.hpp"

#include <string_view>

namespace sailor::runtime {

namespace {

constexpr std::string_view by_another_rank = "reported by another rank";

}  // namespace

Result<void> agree(Control& control, const Result<void>& result) {
  constexpr int codes = 16;  // more than the number of ErrorCodes
  const double none = static_cast<double>(control.size()) * codes;
  const double mine = result ? none : control.rank() * codes + static_cast<int>(result.error().code);
  const double first = control.min(mine);
  if (first == none) return {};
  if (!result && first == mine) return result;
  return fail(reported_elsewhere(static_cast<ErrorCode>(static_cast<int>(first) % codes)));
}

Error reported_elsewhere(ErrorCode code) { return {code, std::string(by_another_rank)}; }
bool is_reported_elsewhere(const Error& error) { return error.what == by_another_rank; }

std::vector<std::string> all_texts(Control& control, const std::string& text) {
  std::string joined;
  for (const std::string& one : control.gather(text)) joined += one + "\n";
  joined = control.broadcast(std::move(joined));
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin < joined.size();) {
    const std::size_t end = joined.find('\n', begin);
    texts.push_back(joined.substr(begin, end - begin));
    begin = end + 1;
  }
  return texts;
}

}  // namespace sailor::runtime
