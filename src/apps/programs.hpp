// The programs of Sailor by name, and what each is for: in --help, in the manual pages, and in the list that `sailor`
// prints.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sailor::apps {

struct Program {
  std::string_view name{};
  std::string_view purpose{};  ///< one line, no full stop
};

/// In the order in which a user meets them.
std::span<const Program> programs();

/// The purpose of a program of the list; aborts for any other name, which is a programming error.
std::string purpose_of(std::string_view program);

}  // namespace sailor::apps
