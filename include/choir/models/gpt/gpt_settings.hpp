#pragma once
// The deck keys that only GPTs have.
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/models/blend_section.hpp"
#include "choir/models/gpt/gpt_config.hpp"

namespace choir {

/// A GptConfig whose zeros are derived later: vocab_size from the data, the others from its
/// members.
inline GptConfig undetermined_gpt() {
  GptConfig gpt;
  gpt.vocab_size = gpt.n_kv_head = gpt.ffn_width = 0;
  return gpt;
}

struct GptSettings : BlendSection {
  GptConfig model = undetermined_gpt();
  std::string tokenizer = "char";  ///< char | byte, for text prepared on first use
  double val_fraction = 0.1;
  std::int64_t eval_batches = 0;  ///< 0: all of the validation data
  int sample_tokens = 200;        ///< 0: no sample
  std::string sample_prompt = "\n";
  double sample_temperature = 0.8;
  int sample_top_k = 0;  ///< 0: all
};

inline const GptSettings& gpt_settings(const Deck& deck) {
  return deck.families.of<GptSettings>();
}
/// The transformer that the deck describes.
inline const GptConfig& gpt_of(const Deck& deck) {
  return gpt_settings(deck).model;
}

/// The keys of a decoder, without their section ("model" of a Gpt); the derivation of values that
/// are 0; and the problems of dividing its sequences among ranks of the context axis, in the words
/// of a Gpt.
const KeyTable<GptConfig>& decoder_keys();
void derive_decoder(Deck& deck, GptConfig& gpt, const std::string& section);
std::vector<KeyProblem> check_context(const Deck& deck, const GptConfig& gpt);

/// The default of ffn_width: 4 C, or for swiglu 8/3 C rounded up to a multiple of 64.
std::int64_t default_ffn_width(const GptConfig& gpt);

/// Returns the problems of a model, for example sizes that do not divide, with the nearest legal
/// values. n_kv_head may still be 0.
std::vector<KeyProblem> check_model(const GptConfig& gpt);

/// Returns the problems of a model divided among `ranks` of the tensor axis, and those of its
/// tiles.
std::vector<KeyProblem> check_tensor_size(const GptConfig& gpt, std::int64_t ranks);

}  // namespace choir
