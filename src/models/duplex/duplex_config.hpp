#pragma once
// The configuration of full-duplex speech to speech (the direct codes of Hu et al. 2025, arXiv
// 2505.15670): at every frame of a dialogue a language model reads a frame of the user, and outputs
// a token of text and a frame of codes of the agent.
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "choir/core/enum_words.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/model_config.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {

/// The device of the models that score an evaluation: the CPU of the rank, or the device that also
/// trains or evaluates.
enum class ScorerDevice { cpu, shared };
constexpr auto words_of(ScorerDevice) {
  return words<ScorerDevice>({{ScorerDevice::cpu, "cpu"}, {ScorerDevice::shared, "shared"}});
}

/// Weights of the parts of the loss: of its two terms, and within the text of the classes of
/// targets that are not words.
struct DuplexLoss {
  double text = 3, audio = 1;
  double pad = 1, bos = 1, eos = 1;
  double pad_in_turn = -1;  ///< of padding between BOS and EOS; below 0: like `pad`
};

struct DuplexConfig {
  FastConformerConfig encoder;  ///< its vocabulary is unused: there is no CTC head
  GptConfig lm;
  std::int64_t codebooks = 4;  ///< K
  std::int64_t codes = 1000;   ///< N, codes of each codebook
  DuplexLoss loss;
  double user_weight = 1;  ///< factor of the user's frames in the sum that the language model reads

  // ModelConfig reads these of the whole model.
  std::int64_t n_layer = 0;                 ///< all blocks and the junction; set by complete()
  std::int64_t n_embd = 0, vocab_size = 0;  ///< of the decoder
  Recompute recompute = Recompute::none;    ///< in the blocks of both towers

  /// Sets the members that follow from the parts.
  void complete() {
    n_layer = encoder.n_layer + 1 + lm.n_layer;
    n_embd = lm.n_embd;
    vocab_size = lm.vocab_size;
  }
  /// The unit that adds frames, text and codes to rows of the decoder.
  int junction() const { return static_cast<int>(encoder.n_layer) + 1; }

  // Ids of a codebook: [0, N) are sound. A frame of control codes is silence.
  static constexpr std::int64_t kControls = 3, kMostCodes = 65536 - kControls;
  std::int64_t bos_code() const { return codes; }        ///< the agent begins a turn
  std::int64_t eos_code() const { return codes + 1; }    ///< the agent ends a turn
  std::int64_t delay_code() const { return codes + 2; }  ///< before the first frame
  std::int64_t code_ids() const { return codes + kControls; }
};

const ModelFamily& family_of(const DuplexConfig& config);

}  // namespace choir
