#pragma once
// The deck keys that only language models with audio input have.
#include <string>

#include "choir/deck/deck.hpp"
#include "choir/models/blend_section.hpp"
#include "choir/models/gpt/gpt_settings.hpp"
#include "choir/models/salm/salm_config.hpp"

namespace choir {

inline SalmConfig undetermined_salm() {
  SalmConfig config;
  config.lm = undetermined_gpt();
  return config;
}

/// Keys of data.* and eval.* that only conversations with clips have.
struct SalmSection : BlendSection {
  std::int64_t batch_tokens = 2048;    ///< rows of a micro-batch, padding included
  std::int64_t max_tokens = 0;         ///< longer conversations are skipped; 0: block_size
  std::int64_t max_conversations = 0;  ///< in a micro-batch; 0: any number
  std::int64_t buckets = 8;
  std::int64_t window = 4096;       ///< conversations drawn together
  std::int64_t answers = 0;         ///< per set, generated and scored; 0: all, -1: none
  std::int64_t answer_tokens = 64;  ///< upper bound per answer
};

struct SalmSettings {
  SalmConfig model = undetermined_salm();
  SalmSection data;
};

inline const SalmSettings& salm_settings(const Deck& deck) {
  return deck.families.of<SalmSettings>();
}

}  // namespace choir
