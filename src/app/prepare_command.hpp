#pragma once
// Parts of `choir prepare`: each function adds a subcommand that sets the action to take. A header
// of its own, because the subcommands are in two files.
#include <functional>

#include "src/app/command_line.hpp"

namespace choir {

/// The action of the subcommand that the command line selects.
using PrepareAction = std::function<int()>;

inline void choose(CommandLine& app, PrepareAction& chosen, const PrepareAction& action) {
  app.callback([&chosen, action] { chosen = action; });
}

// src/app/prepare_corpora.cpp
void add_prepare_codes(CommandLine& prepare, PrepareAction& chosen, const FamilyTable& families);
void add_prepare_corpus(CommandLine& prepare, PrepareAction& chosen);
void add_prepare_dialogues(CommandLine& prepare, PrepareAction& chosen);

}  // namespace choir
