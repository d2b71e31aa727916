// Fuzzes the small languages in decks: data.input_cfg (first byte 'i'), patterns of parameter names
// ('p', pattern and name on a line each), names of shards (any other byte).
#include <nlohmann/json.hpp>

#include "src/core/json_document.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/sampling/mix.hpp"
#include "src/deck/name_patterns.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

void try_mix(std::string_view text) {
  accepted([&] {
    const JsonDocument document = parse_json(text, "data.input_cfg");
    const SpeechMix mix = SpeechMix::of_json(document.root(), {0.5}, "data.input_cfg");
    const auto leaves = leaves_of(mix);
    std::vector<std::int64_t> utterances(leaves.size());
    for (std::size_t i = 0; i < utterances.size(); ++i) utterances[i] = std::int64_t{1} << (i % 40);
    double sum = 0;
    for (const auto& pool : pools_of(mix, utterances)) {
      require(pool.probability >= 0 && pool.probability <= 1 + 1e-9, "a probability beyond 1");
      sum += pool.probability;
    }
    require(sum > 0.999 && sum < 1.001, "probabilities that do not add up to 1");
  });
}

/// Tries all ways to match; for short texts.
bool matches_slowly(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*')
    return matches_slowly(pattern.substr(1), name) ||
           (!name.empty() && matches_slowly(pattern, name.substr(1)));
  return !name.empty() && (pattern.front() == '?' || pattern.front() == name.front()) &&
         matches_slowly(pattern.substr(1), name.substr(1));
}

void try_pattern(std::string_view text) {
  const std::string pattern(cut(text, "\n")), name(cut(text, "\n"));
  const bool matches = matches_pattern(pattern, name);
  if (pattern.size() < 12 && name.size() < 12)
    require(matches == matches_slowly(pattern, name), "a pattern matches otherwise");
  accepted([&] { require_matches("train.freeze", {pattern}, {name, "blocks.0.attn.qkv.weight"}); });
}

}  // namespace

std::vector<std::string> seeds() {
  return {R"(i[{"folder": "a", "weight": 2}, {"group": ["b", {"folder": "c"}], "weight": 0.5}])",
          R"(i["a", {"folder": "b", "tags": {"lang": "en", "n": 3}}])",
          "pblocks.*.attn.?kv.*\nblocks.11.attn.qkv.weight", "na__OP_000..012_CL_.json",
          "na_{0..9}_{3..5}.json"};
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const std::string_view rest = input.substr(1);
  if (input.front() == 'i') return try_mix(rest);
  if (input.front() == 'p') return try_pattern(rest);
  std::vector<std::int64_t> numbers;
  accepted([&] {
    const auto names = expand_shard_pattern(std::string(rest), &numbers);
    require(names.size() == numbers.size() && names.size() <= 1000000, "names without number");
  });
}

}  // namespace choir::fuzz
