// The programs of Sailor with their purposes: for --help, the manual pages, and the list that `sailor` prints.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sailor::apps {

struct Program {
  std::string_view name{};
  std::string_view purpose{};  ///< one line, no full stop
};

/// All programs, in the order in which a user meets them.
std::span<const Program> programs();

/// The purpose of a program of the list; aborts for any other name, which is a programming error.
std::string purpose_of(std::string_view program);

/// The command that trains a plan file, for suggest_next().
std::string submit_command(std::string_view plan);

}  // namespace sailor::apps
