// The text of a batch script as it grows: comments, #SBATCH lines, bash. Only the writers of scripts use it.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

class Script {
 public:
  void comment(std::string_view text) { text_ += fmt::format("# {}\n", text); }
  void line(std::string_view text) { text_ += fmt::format("{}\n", text); }
  void blank() { text_ += '\n'; }
  /// Appends whole lines, each with its newline.
  void text(std::string_view lines) { text_ += lines; }
  /// #SBATCH --name=value
  Result<void> option(std::string_view name, std::string_view value) {
    auto quoted = sbatch_quote(name, value);
    if (!quoted) return fail(quoted.error());
    line(fmt::format("#SBATCH --{}={}", name, *quoted));
    return {};
  }
  Result<void> extra_option(const std::string& option) {
    const std::size_t equals = option.find('=');
    if (equals != std::string::npos)
      return this->option(std::string_view(option).substr(2, equals - 2), std::string_view(option).substr(equals + 1));
    auto checked = sbatch_quote("an sbatch option", option);
    if (!checked) return fail(checked.error());
    line(fmt::format("#SBATCH {}", option));
    return {};
  }
  /// A word of an array in the script, with the reason beside it.
  void word(std::string_view text, std::string_view reason = {}) {
    if (reason.empty())
      line(fmt::format("  {}", text));
    else
      line(fmt::format("  {:<36} # {}", text, reason));
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace sailor::slurm
