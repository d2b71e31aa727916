#pragma once
// The parts of `choir prepare` that have a file of their own.
#include <functional>

#include "choir/app/command_line.hpp"

namespace choir {

/// What the subcommand that was given on the command line does.
using PrepareAction = std::function<int()>;

void add_prepare_tokenizer(CommandLine& prepare, PrepareAction& chosen);
void add_prepare_tokens(CommandLine& prepare, PrepareAction& chosen);
void add_prepare_corpus(CommandLine& prepare, PrepareAction& chosen);

}  // namespace choir
