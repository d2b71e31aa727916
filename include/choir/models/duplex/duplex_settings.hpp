#pragma once
// What a deck says to duplex models: the keys that only they have.
#include "choir/deck/deck.hpp"
#include "choir/models/duplex/duplex_config.hpp"
#include "choir/models/gpt/gpt_settings.hpp"

namespace choir {

/// With an encoder that can be streamed.
inline DuplexConfig undetermined_duplex() {
  DuplexConfig config;
  config.encoder.causal = true;
  config.encoder.context_style = ContextStyle::chunked;
  config.encoder.left_context = 70, config.encoder.right_context = 1;
  config.encoder.normalise = false;
  config.lm = undetermined_gpt();
  return config;
}

struct DuplexSettings {
  DuplexConfig model = undetermined_duplex();
};

inline const DuplexSettings& duplex_settings(const Deck& deck) {
  return deck.families.of<DuplexSettings>();
}

}  // namespace choir
