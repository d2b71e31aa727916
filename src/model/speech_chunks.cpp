#include "choir/model/speech_chunks.hpp"

#include <fmt/core.h>

namespace choir {
namespace {

std::int64_t divided_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

}  // namespace

std::vector<std::string> keys_against_streaming(const FastConformerConfig& c) {
  std::vector<std::string> keys;
  const auto add = [&](bool bad, std::string key) {
    if (bad) keys.push_back(std::move(key));
  };
  add(!c.causal, "model.causal = false");
  add(c.context_style != ContextStyle::chunked, "model.context_style = \"regular\"");
  add(c.left_context < 0, "model.left_context = -1");
  add(c.normalise, "model.normalise = true");
  add(c.conv_norm == ConvNorm::batchnorm, "model.conv_norm = \"batchnorm\"");
  return keys;
}

SpeechChunks::SpeechChunks(const FastConformerConfig& c)
    : frames(c.right_context + 1),
      past(c.left_context / frames * frames),
      overlap(divided_up(2 * (c.subsampling - 1) + divided_up(c.mel.fft / 2 + 1, c.mel.hop),
                         c.subsampling)),
      frame_samples(c.mel.hop * c.subsampling),
      ahead(std::max(c.mel.hop, c.mel.fft / 2)) {
  CHOIR_CHECK(keys_against_streaming(c).empty(), "a model that cannot stream: {}",
              keys_against_streaming(c).front());
}

}  // namespace choir
