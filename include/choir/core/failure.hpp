#pragma once
// Exceptions as users see them. This covers exceptions of other libraries (the file functions of
// the standard library, the printing library), which have neither an exit code nor a hint.
#include <exception>
#include <string>

#include "choir/core/error.hpp"

namespace choir {

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
