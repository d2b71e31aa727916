#pragma once
// The deck keys that only duplex models have.
#include "choir/deck/deck.hpp"
#include "choir/models/blend_section.hpp"
#include "choir/models/duplex/duplex_config.hpp"
#include "choir/models/gpt/gpt_settings.hpp"

namespace choir {

/// The defaults, with a streaming encoder.
inline DuplexConfig undetermined_duplex() {
  DuplexConfig config;
  config.encoder.causal = true;
  config.encoder.context_style = ContextStyle::chunked;
  config.encoder.left_context = 70, config.encoder.right_context = 1;
  config.encoder.normalise = false;
  config.lm = undetermined_gpt();
  return config;
}

/// Keys of data.* and eval.* that only dialogues have.
struct DuplexSection : BlendSection {
  std::string codes = "codec";     ///< NAME of agent/codes.NAME.bin
  double batch_duration = 60;      ///< seconds in a micro-batch
  std::int64_t max_dialogues = 0;  ///< in a micro-batch; 0: any number
  std::int64_t buckets = 8;
  std::int64_t window = 4096;   ///< dialogues drawn together
  std::string on_bad = "stop";  ///< stop | skip
  std::int64_t dialogues = 8;  ///< dialogues of each set that are held and scored; 0: none, -1: all
  std::string codec,
      recogniser;  ///< runs that convert the agent's codes to sound and text; "": none
};

struct DuplexSettings {
  DuplexConfig model = undetermined_duplex();
  DuplexSection data;
};

inline const DuplexSettings& duplex_settings(const Deck& deck) {
  return deck.families.of<DuplexSettings>();
}

}  // namespace choir
