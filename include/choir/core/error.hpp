#pragma once
// Errors carry what happened, where in the code, a hint for the user and the exit code of the
// process. Library code throws; only the command line turns an error into an exit. Failure
// describes any exception as users see it, also exceptions of other libraries (the file functions
// of the standard library, the printing library), which have neither an exit code nor a hint.

#include <fmt/core.h>

#include <exception>
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

struct Failure {
  ExitCode code = ExitCode::other;
  std::string text, hint;
  std::string where;  ///< "file.cpp:123" of our own errors, else ""
};

/// The message, with the source line appended to its first line if that helps: it does not help a
/// user whose deck, data or disk is wrong.
std::string what_and_where(const Error& error);

/// The cause in choir's own words. Messages never quote the text of a library's exception, because
/// it names the library's classes. For errors of choir this is what(). Local.
std::string plain_cause(const std::exception& error);

/// Exceptions of file functions, and those of a failed write to standard output, are storage
/// errors; all other foreign exceptions, std::bad_alloc included, have the code `other`. Local.
Failure failure_of(const std::exception& error);

/// A hint against the system error `number` (an errno): "free some space ..."; "" if there is none.
/// Local.
std::string storage_cure(int number);

/// Flushes standard output at the end of a command. Returns why a part of the output was lost, or
/// "" if none was. Local.
std::string flush_stdout();

}  // namespace choir

/// Checks for mistakes of the programmer, never for mistakes of the user: throws
/// Error{ExitCode::other}.
#define CHOIR_CHECK(condition, ...)                                                               \
  do {                                                                                            \
    if (!(condition)) [[unlikely]]                                                                \
      throw ::choir::Error(::choir::ExitCode::other,                                              \
                           "internal check failed: " #condition ": " + fmt::format(__VA_ARGS__)); \
  } while (false)
