#pragma once
// The parts of `choir prepare` that have a file of their own.
#include <CLI/CLI.hpp>

#include <functional>

namespace choir {

/// What the subcommand that was given on the command line does.
using PrepareAction = std::function<int()>;

void add_prepare_tokenizer(CLI::App& prepare, PrepareAction& chosen);
void add_prepare_tokens(CLI::App& prepare, PrepareAction& chosen);
void add_prepare_corpus(CLI::App& prepare, PrepareAction& chosen);

}  // namespace choir
