// Errors as values. Every fallible function of Sailor returns Result<T>.
//
// A message says who or what failed, the value, why, and what to do:
//   "plan.toml:12:1: stage 1 holds layers [3, 9) but stage 0 ends at 4; make the ranges adjoin"
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace sailor {

/// What kind of failure; it selects the exit status of a program (see exit_status()).
enum class ErrorCode {
  usage,          ///< the command line is wrong
  invalid_input,  ///< a file or value says something impossible
  not_found,      ///< a name, file or entry does not exist
  infeasible,     ///< nothing satisfies the constraints
  unavailable,    ///< a service, library or device is not there
  io,             ///< the operating system refused
  failure,        ///< anything else
};

struct Error {
  ErrorCode code = ErrorCode::failure;
  std::string what;  ///< what is wrong, where, and why
  std::string hint;  ///< what to do about it; may be empty

  /// "what; hint"
  [[nodiscard]] std::string message() const { return hint.empty() ? what : what + "; " + hint; }
};

template <class T>
using Result = tl::expected<T, Error>;

/// `return fail(ErrorCode::not_found, "...", "...");` from any function that returns Result<T>.
inline tl::unexpected<Error> fail(ErrorCode code, std::string what, std::string hint = {}) {
  return tl::unexpected<Error>(Error{code, std::move(what), std::move(hint)});
}

/// Passes an error on, with the context put before its message.
inline tl::unexpected<Error> fail(Error error, std::string_view context = {}) {
  if (!context.empty()) error.what = std::string(context) + ": " + error.what;
  return tl::unexpected<Error>(std::move(error));
}

/// The exit status of a program that ends with this error: 1 failure, 2 usage, 3 no feasible plan.
constexpr int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return 2;
    case ErrorCode::infeasible:
      return 3;
    default:
      return 1;
  }
}

}  // namespace sailor

/// Returns the error of `result` from the enclosing function, or goes on.
#define SAILOR_CHECK(result)                                                            \
  do {                                                                                  \
    if (auto&& sailor_check_result = (result); !sailor_check_result)                    \
      return ::tl::unexpected<::sailor::Error>(std::move(sailor_check_result).error()); \
  } while (false)
