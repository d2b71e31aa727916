#pragma once
// What is thrown, as users see it: also by those who know nothing of our errors (the standard
// library's file functions, the printing library), whose exceptions say neither how the process
// should end nor what to do.
#include <exception>
#include <string>

#include "choir/core/error.hpp"

namespace choir {

struct Failure {
  ExitCode code = ExitCode::other;
  std::string text, hint;
  std::string where;  ///< "file.cpp:123" of our own errors, else ""
};

/// What happened, with the place in the sources behind its first line where that helps: whose deck,
/// data or disk is wrong can do nothing with it.
std::string what_and_where(const Error& error);

/// Local. What happened, in our words: messages never quote the text of a library's exception,
/// which names its own classes. For errors of choir it is what().
std::string plain_cause(const std::exception& error);

/// Local. An exception of a file function is one of storage, and so is one that a write to standard
/// output left behind; what else is not ours, refused memory among it, has the code `other`.
Failure failure_of(const std::exception& error);

/// Local. What kept the system's reason `number` (an errno) from happening: "free some space ...";
/// "" where there is nothing to say.
std::string storage_cure(int number);

/// Local, at the end of a command: brings what was printed to its place. Why some of it never got
/// there, "" when all did.
std::string flush_stdout();

}  // namespace choir
