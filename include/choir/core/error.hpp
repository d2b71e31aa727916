#pragma once
// Errors carry what happened, where in the code, what the user can do about it, and the exit code
// the process ends with. Library code throws; only the command line turns an error into an exit.
#include <fmt/core.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace choir {

/// Exit codes of the program; a contract with job scripts (see README).
enum class ExitCode : int {
  done = 0,
  other = 1,
  deck = 2,
  data = 3,
  numeric = 4,
  communication = 5,
  storage = 6,
  resubmit = 75,  ///< state saved, run the same command again
};

/// Base of all errors thrown by choir. `hint` says what to do; it may be empty.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what, std::string hint = {},
        std::source_location at = std::source_location::current());
  ExitCode code() const { return code_; }
  const std::string& hint() const { return hint_; }
  /// "file.cpp:123": the source line that threw.
  const std::string& where() const { return where_; }
  /// Number of ranks that throw this same error together; if all of them do, one rank reports it
  /// for all.
  int agreed_ranks() const { return agreed_ranks_; }
  void set_agreed_ranks(int ranks) { agreed_ranks_ = ranks; }

 private:
  ExitCode code_;
  std::string hint_;
  std::string where_;
  int agreed_ranks_ = 1;
};

/// The error classes that have an exit code of their own.
template <ExitCode kCode>
class CodedError : public Error {
 public:
  explicit CodedError(const std::string& what, std::string hint = {},
                      std::source_location at = std::source_location::current())
      : Error(kCode, what, std::move(hint), at) {}
};
using DeckError = CodedError<ExitCode::deck>;
using DataError = CodedError<ExitCode::data>;
using NumericError = CodedError<ExitCode::numeric>;
using CommError = CodedError<ExitCode::communication>;
using StorageError = CodedError<ExitCode::storage>;

/// One printable line: "what [where]. hint".
std::string describe(const std::exception& error);

}  // namespace choir

/// Checks for mistakes of the programmer, never for mistakes of the user: throws
/// Error{ExitCode::other}.
#define CHOIR_CHECK(condition, ...)                                                               \
  do {                                                                                            \
    if (!(condition)) [[unlikely]]                                                                \
      throw ::choir::Error(::choir::ExitCode::other,                                              \
                           "internal check failed: " #condition ": " + fmt::format(__VA_ARGS__)); \
  } while (false)
