// Commands that a shell reads: in job scripts, and in messages that people copy.
#pragma once

#include <string>
#include <string_view>

namespace sailor {

/// `word` as bash reads it back unchanged: plain when it holds only harmless characters, else in single quotes.
/// A NUL byte, which no shell word can hold, must have been refused before.
std::string shell_quote(std::string_view word);

}  // namespace sailor
