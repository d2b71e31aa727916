#pragma once
// `choir prepare audio`: its arguments, and what it does with them.
#include <memory>

#include "choir/app/command_line.hpp"

namespace choir {

class PrepareAudioCommand {
 public:
  /// Adds the subcommand; the object must outlive the parsing.
  explicit PrepareAudioCommand(CommandLine& prepare);
  ~PrepareAudioCommand();
  /// It is the subcommand that was asked for.
  bool chosen() const;
  /// Under MPI; returns the exit code.
  int run() const;

 private:
  struct Request;
  std::unique_ptr<Request> request_;
};

}  // namespace choir
