#include "test/drawn_decks/drawn_values.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/deck/deck_tables.hpp"
#include "test/support/families.hpp"

namespace choir::test {
namespace {

using Words = std::vector<std::string>;

/// The path without the part of the model that contains it: "model.lm.norm" becomes "norm".
std::string last_name(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

std::string section_of(const std::string& path) {
  return path.substr(0, path.rfind('.') + 1);
}

/// Keys that `choir verify` ignores, sets itself, or treats as an axis of layouts; and keys of
/// devices other than the CPU.
bool is_left_out(const std::string& path) {
  static const Words kOther{"model.type",
                            "optimizer.scale_lr",
                            "optimizer.min_lr",
                            "optimizer.decay_steps",
                            "optimizer.moment_precision",
                            "model.attention",
                            "model.lm.attention",
                            "model.attention_deterministic",
                            "model.lm.attention_deterministic",
                            "model.gelu_in_product",
                            "model.lm.gelu_in_product",
                            "model.attention_in_one_kernel",
                            "model.encoder.attention_in_one_kernel",
                            "model.tile",
                            "model.lm.tile"};
  static const Words kAlso{"train.label_smoothing",
                           "train.reproducible",
                           "train.freeze",
                           "train.frozen_precision",
                           "train.micro_batches",
                           "data.pack",
                           "run.seed",
                           "parallel.transport",
                           "parallel.encoder",
                           "train.head_chunk",
                           "train.attention_chunk"};
  if (std::ranges::count(kOther, path) > 0) return true;
  if (path.starts_with("model.") || path.starts_with("optimizer.")) return false;
  return std::ranges::count(kAlso, path) == 0;
}

/// Only the readers of texts and lists know the legal values; some numbers are chosen such that
/// rounding errors stay below the tolerances, as the comments of inputs/verify_asr.json explain.
const Words* own_words(const std::string& path, const std::string& family) {
  static const std::map<std::string, Words> kWords{
      {"levels", {"8,5,3", "5,5", "4", "8,8,8", "3,2,7"}},
      {"resolutions", {"256,512,1024", "256", "128,512", "512,1024"}},
      {"targets",
       {"[\"all\"]", "[\"q\"]", "[\"q\",\"v\"]", "[\"k\",\"o\",\"down\"]", "[\"gate\"]",
        "[\"up\",\"down\"]", "[\"q\",\"k\",\"v\",\"o\"]"}},
      {"freeze", {"[\"*.0.*\"]", "[\"*norm*\"]", "[\"*.0.*\",\"*norm*\"]"}},
      {"scale", {"{\"*.0.*\":0.5}", "{\"*.0.*\":2}"}},
      {"codec freeze", {"[\"encoder*\"]"}},
      {"codec scale", {"{\"*weight\":0.5}", "{\"encoder*\":0.25,\"decoder*\":3}"}},
      // The random conversations of verify have up to 30 positions.
      {"model.lm.block_size", {"40", "64", "100"}},
      {"learning_rate", {"1e-4", "1e-3", "3e-3"}},
      {"adamw_learning_rate", {"1e-4", "1e-3", "3e-3"}},
      {"epsilon", {"1e-6", "1e-5", "1e-4"}},
      {"norm_eps", {"1e-6", "1e-5", "1e-3"}},
      {"beta1", {"0", "0.5", "0.9", "0.99"}},
      {"beta2", {"0.5", "0.9", "0.999"}},
      {"momentum", {"0", "0.5", "0.9"}},
      {"wsd_decay_steps", {"1", "2", "3"}},
      {"transport", {"auto", "mpi", "node"}},
      {"rope_theta", {"100", "10000"}},
      {"z_loss", {"1e-4", "0.02"}},
      {"head_chunk", {"0", "1", "7", "16"}},
      {"attention_chunk", {"0", "1", "7", "16"}},
      {"subsampling", {"2", "4", "8"}},
      {"log_guard", {"1e-6", "1e-3"}},
      {"mel_high", {"0", "4000", "7000"}},
  };
  for (const std::string& name : {path, family + " " + last_name(path), last_name(path)})
    if (const auto found = kWords.find(name); found != kWords.end()) return &found->second;
  return nullptr;
}

bool is_legal(const Key& key, double value) {
  const bool low = key.low && (value < *key.low || (key.low_open && value == *key.low));
  const bool high = key.high && (value > *key.high || (key.high_open && value == *key.high));
  return !low && !high;
}

Words numbers(const Key& key, double now) {
  std::vector<double> values;
  if (key.type == KeyType::integer && now == 0)
    values = {0, 1, 2, 3, 4, 8, 16};
  else if (key.type == KeyType::integer)
    values = {1, 2, now / 2, now - 1, now + 1, now * 3 / 4, now * 5 / 4, now * 2};
  else if (key.high && *key.high <= 1)
    values = {0, 0.1, 0.3, 0.5};
  else
    values = {now / 2, now * 2, 0, 0.25, 1};
  Words words;
  for (const double value : values) {
    if (!is_legal(key, value)) continue;
    words.push_back(key.type == KeyType::integer
                        ? std::to_string(static_cast<std::int64_t>(std::floor(value)))
                        : fmt::format("{}", value));
  }
  return words;
}

/// The words that differ from those of the deck.
Words words_for(const Key& key, const Deck& deck) {
  if (const Words* own = own_words(key.path, std::string(deck.family().name()))) return *own;
  const KeyValue now = key.get(key, const_cast<Deck*>(&deck));
  if (key.type == KeyType::boolean) return {"true", "false"};
  if (key.type == KeyType::choice) return key.choices;
  if (const auto* whole = std::get_if<std::int64_t>(&now))
    return numbers(key, static_cast<double>(*whole));
  if (const auto* real = std::get_if<double>(&now)) return numbers(key, *real);
  return {};
}

}  // namespace

bool is_named(const Key& key) {
  return key.type == KeyType::boolean || key.type == KeyType::choice;
}

std::vector<KeyWords> words_of(const Deck& deck) {
  std::vector<KeyWords> list;
  for (const Key& key : test::families().keys().keys()) {
    if (is_left_out(key.path) || !deck::concerns(test::families(), deck.family(), key.path))
      continue;
    Words words = words_for(key, deck);
    std::ranges::sort(words);
    words.erase(std::unique(words.begin(), words.end()), words.end());
    if (!words.empty()) list.push_back({&key, std::move(words)});
  }
  return list;
}

std::vector<std::pair<std::string, std::string>> companions(const std::string& key,
                                                            const std::string& word,
                                                            const std::string& family) {
  const std::string name = last_name(key), section = section_of(key);
  std::vector<std::pair<std::string, std::string>> others;
  const auto need = [&](const char* other, const char* value) {
    others.emplace_back(section + other, value);
  };
  if (name == "rope_scaling" && word != "none") {
    need("position", "rope"), need("rope_factor", "2");
    if (word != "linear") need("rope_original", "16");
    if (word == "longrope")
      need("rope_width", "2"), need("rope_short_factors", "[1.5]"),
          need("rope_long_factors", "[3]");
  }
  if (name == "rope_truncate")
    need("position", "rope"), need("rope_scaling", "yarn"), need("rope_factor", "2"),
        need("rope_original", "16");
  if (name == "norm_bias" && word == "yes") need("norm", "layernorm");
  if (name == "context_style" && word == "chunked")
    need("right_context", "1"), need("left_context", "4");
  if (name == "rank_stabilised") need("rank", "3");
  if (name.starts_with("wsd_decay")) need("schedule", "wsd");
  if (name == "head" && word == "istft") need("resolutions", "256,512,1024");
  // A LARS step is as large as its ratio; test/run/verify.sh explains the epsilon.
  if (key == "optimizer.name" && word == "lars")
    need("learning_rate", "1"), need("trust_coefficient", "0.02"), need("epsilon", "1e-3");
  // Some gradients of a z-loss nearly vanish; inputs/verify_asr.json explains the epsilon.
  if (name == "z_loss") others.emplace_back("optimizer.epsilon", "1e-6");
  if (key.starts_with("optimizer.muon.")) others.emplace_back("optimizer.name", "muon");
  // Sums in a tree need powers of two.
  if (key == "train.reproducible" && word == "true") need("global_batch_size", "16");
  if (key == "train.frozen_precision" && word == "bf16")
    need("freeze", family == "codec" ? "[\"encoder*\"]" : "[\"*.0.*\"]"),
        need("precision", "bf16-mixed");
  return others;
}

}  // namespace choir::test
