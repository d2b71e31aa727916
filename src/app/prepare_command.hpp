#pragma once
// What the parts of `choir prepare` share.
#include <functional>

#include "src/app/command_line.hpp"

namespace choir {

/// What the subcommand that was given on the command line does.
using PrepareAction = std::function<int()>;

inline void choose(CommandLine& app, PrepareAction& chosen, const PrepareAction& action) {
  app.callback([&chosen, action] { chosen = action; });
}

void add_prepare_codes(CommandLine& prepare, PrepareAction& chosen);
void add_prepare_corpus(CommandLine& prepare, PrepareAction& chosen);
void add_prepare_dialogues(CommandLine& prepare, PrepareAction& chosen);

}  // namespace choir
