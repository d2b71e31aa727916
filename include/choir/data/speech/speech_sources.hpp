#pragma once
// What training draws from, for people: the folders of a blend with their shares of the draws and
// their tags, and what has been drawn. Pure.
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "choir/data/speech/speech_blend.hpp"
#include "choir/data/speech/speech_mix.hpp"

namespace choir {

struct SpeechSource {
  SpeechLeaf leaf;
  double share = 0;  ///< of the draws, as the blend wants it
  double hours = 0;
  std::int64_t utterances = 0;
};

/// Of every leaf, also of one without utterances.
std::vector<SpeechSource> sources_of(std::span<const SpeechLeaf> leaves, const SpeechBlend& blend,
                                     int sample_rate);
/// "lang=en", sorted; "" for none.
std::string tags_text(const std::map<std::string, std::string>& tags);
/// A line each: "blend 66.67 % 'data/a': 120 utterances, 0.25 hours, tags lang=en".
std::string to_string(std::span<const SpeechSource> sources);
/// "'data/a' 66.1 % (of 66.7 %), 'data/b' ...; by tag: lang=en 66.1 %, ...". `drawn`: utterances of
/// each source. "" where there is one source only, or nothing was drawn.
std::string drawn_text(std::span<const SpeechSource> sources, std::span<const std::int64_t> drawn);

}  // namespace choir
