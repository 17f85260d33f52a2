// Words for the shell and for Slurm: quoting, and what names and times may look like.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::slurm {

/// `word` as bash reads it back unchanged: plain when it holds only harmless characters, else in single quotes.
/// A NUL byte, which no shell word can hold, must have been refused before.
std::string shell_quote(std::string_view word);

/// A value for an #SBATCH line, quoted as sbatch's own parser wants it. Errors: invalid_input for control characters
/// such as newlines, which would start a line of their own; `what` names the value in the message.
Result<std::string> sbatch_quote(std::string_view what, std::string_view value);

/// `value` if it is a valid name: letters, digits and . _ + @ : = - , no leading '-', at most 128 characters.
Result<std::string> check_name(std::string_view what, std::string_view value);

/// Slurm's time formats: "90" (minutes), "10:30" (minutes and seconds), "1:30:00", "1-12", "1-12:30", "1-12:30:00".
Result<Seconds> parse_time_limit(std::string_view text);
/// "1-12:30:00" or "01:30:00"; rounded up to whole seconds.
std::string format_time_limit(Seconds time);
/// "2026-11-25 08:00", local time.
std::string format_clock(std::int64_t unix_s);

}  // namespace sailor::slurm
