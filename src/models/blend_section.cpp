#include "src/models/blend_section.hpp"

#include <fmt/core.h>

namespace choir {

std::string wrong_shard_seed(const KeyValue& value) {
  try {
    speech_order_seed(std::get<std::string>(value), 0, 0);
    return {};
  } catch (const DeckError&) {
    return "expected an integer of at most 18 digits, \"randomized\", or \"\"";
  }
}

// The key is shared by all families: an option that only some of them support is accepted here and
// refused by the others when they open their data.
std::string wrong_validation(const KeyValue& value) {
  constexpr EvalWords kOfAny{.durations = true,
                             .batch_duration = true,
                             .tags = true,
                             .answers = true,
                             .dialogues = true,
                             .batches = true};
  for (const auto& [name, text] : std::get<TextMap>(value)) try {
      eval_set_of(name, text, kOfAny);
    } catch (const DeckError& error) {
      return fmt::format("{}; {}", error.what(), error.hint());
    }
  return {};
}

std::vector<KeyProblem> check_blend(const BlendSection& blend,
                                    const std::vector<std::string>& train) {
  std::vector<KeyProblem> problems;
  const bool mixed = !blend.input_cfg.empty();
  if (mixed && !train.empty())
    problems.push_back({{"data.train", "data.input_cfg"},
                        "data.train and data.input_cfg both name the training data; remove one"});
  if (!mixed && blend.temperature != 1)
    problems.push_back({{"data.temperature", "data.input_cfg"},
                        "data.temperature is an exponent of the weights of data.input_cfg, which "
                        "is not given"});
  return problems;
}

}  // namespace choir
