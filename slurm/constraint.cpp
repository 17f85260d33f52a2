#include "slurm/constraint.hpp"

#include <algorithm>

namespace sailor::slurm {

namespace {

/// Reads from left to right as slurmctld does: & and | have the same precedence, parentheses come first.
class Reader {
 public:
  Reader(const std::vector<std::string>& features, std::string_view text) : features_(features), text_(text) {}

  std::optional<bool> run() {
    const auto value = expression();
    skip_blanks();
    return text_.empty() ? value : std::nullopt;
  }

 private:
  std::optional<bool> expression() {
    auto value = term();
    while (value) {
      skip_blanks();
      if (text_.empty() || (text_.front() != '&' && text_.front() != '|' && text_.front() != ',')) break;
      const char sign = text_.front();
      text_.remove_prefix(1);
      const auto next = term();
      if (!next) return std::nullopt;
      value = sign == '|' ? *value || *next : *value && *next;
    }
    return value;
  }
  std::optional<bool> term() {
    skip_blanks();
    if (text_.empty()) return std::nullopt;
    std::optional<bool> value;
    if (text_.front() == '(' || text_.front() == '[') {
      const char end = text_.front() == '(' ? ')' : ']';
      text_.remove_prefix(1);
      value = expression();
      skip_blanks();
      if (!value || text_.empty() || text_.front() != end) return std::nullopt;
      text_.remove_prefix(1);
    } else {
      const std::size_t end = std::min(text_.find_first_of(" &|,()[]*"), text_.size());
      if (end == 0) return std::nullopt;
      value = std::find(features_.begin(), features_.end(), text_.substr(0, end)) != features_.end();
      text_.remove_prefix(end);
    }
    if (!text_.empty() && text_.front() == '*') {  // number of such nodes
      text_.remove_prefix(1);
      const std::size_t digits = std::min(text_.find_first_not_of("0123456789"), text_.size());
      if (digits == 0) return std::nullopt;
      text_.remove_prefix(digits);
    }
    return value;
  }
  void skip_blanks() {
    while (!text_.empty() && text_.front() == ' ') text_.remove_prefix(1);
  }

  const std::vector<std::string>& features_;
  std::string_view text_;
};

}  // namespace

std::optional<bool> satisfies(const std::vector<std::string>& features, std::string_view constraint) {
  return Reader(features, constraint).run();
}

}  // namespace sailor::slurm
