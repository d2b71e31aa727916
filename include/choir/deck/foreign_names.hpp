#pragma once
// Names and files of other trainers (nanoGPT, NeMo, Megatron, Hugging Face, torchrun), for those
// who bring them. Local and pure; nothing is ever taken over silently.
#include <string>
#include <string_view>

namespace choir {

/// What stands here for a name that another program uses, or for one of ours without its section:
/// "train.micro_batch_size", or a sentence (it has a blank). "" where nothing is known of it, and
/// where several keys could be meant.
std::string foreign_advice(std::string_view name);

/// Throws DeckError where `source` is, by its ending and its text, a configuration in Python, YAML,
/// TOML or shell and not a deck; the hint lists what its settings are called here.
void refuse_foreign_file(std::string_view text, const std::string& source);

}  // namespace choir
