#pragma once
// Names and configuration files of other trainers (nanoGPT, NeMo, Megatron, Hugging Face,
// torchrun), for users who come from them. Local and pure; no foreign setting is ever applied
// silently.
#include <string>
#include <string_view>

#include "choir/core/key_table.hpp"

namespace choir {

/// The key of the deck that corresponds to a name of another program, or to one of our keys without
/// its section: "train.micro_batch_size", or a sentence of advice (it contains a blank). "" if the
/// name is unknown or several keys match.
std::string foreign_advice(const KeySet& keys, std::string_view name);

/// Throws DeckError if a file that does not begin like a deck is known: a job script, a shell
/// script, a program or configuration in Python, YAML or TOML, by its first lines or its extension,
/// or a file of weights or data, by its first bytes. The message names its kind, and the hint what
/// to type or the corresponding keys.
void refuse_foreign_file(const KeySet& keys, std::string_view text, const std::string& source);

}  // namespace choir
