#pragma once
// A tiny language model with speech input, and prompts whose samples are functions of a number.
#include "src/models/salm/generator.hpp"
#include "src/models/salm/salm.hpp"
#include "src/models/salm/salm_config.hpp"
#include "test/unit/models/fastconformer/fastconformer_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {

inline SalmConfig tiny_salm(std::int64_t vocab_size = 19) {
  SalmConfig config;
  config.encoder = tiny_conformer();
  config.lm = tiny_llama();
  config.lm.vocab_size = vocab_size;
  config.lm.block_size = 64;
  config.complete();
  return config;
}

/// A model far from the small initial values, in fp64.
inline void wake(ModelInstance& instance) {
  instance.initialise(3);
  for (Parameter& p : instance.parameters().parameters())
    for (std::int64_t i = 0; i < p.count(); ++i)
      p.master.as<double>()[i] +=
          0.3 * normal_at(philox_key(4, p.name), static_cast<std::uint64_t>(i));
  instance.publish();
}

inline std::vector<std::uint16_t> noise(std::uint64_t number, std::int64_t samples) {
  std::vector<std::uint16_t> pcm;
  for (std::int64_t i = 0; i < samples; ++i)
    pcm.push_back(static_cast<std::uint16_t>(static_cast<std::int16_t>(
        3000 * normal_at(philox_key(number, "noise"), static_cast<std::uint64_t>(i)))));
  return pcm;
}

}  // namespace choir::test
