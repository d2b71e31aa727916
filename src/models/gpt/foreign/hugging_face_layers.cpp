#include "src/models/gpt/foreign/hugging_face_layers.hpp"

#include <algorithm>
#include <cmath>

#include "choir/core/json_value.hpp"

namespace choir {
namespace {

/// A number that the scaling requires.
double needed_real(KeyReader& keys, const std::string& key) {
  if (!keys.has(key)) keys.problem(key, "this scaling of rotary angles needs it");
  return keys.real(key, 1);
}

/// The factor of rotated queries and keys: a given one, one from two numbers of DeepSeek, or 0 for
/// that of the formula.
double read_attention_factor(KeyReader& keys, double factor) {
  const double given = keys.real("attention_factor", 0);
  const auto grown = [&](double by) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; };
  const double scale = keys.real("mscale", 0), all = keys.real("mscale_all_dim", 0);
  if (given > 0) return given;
  return scale > 0 && all > 0 ? grown(scale) / grown(all) : 0;
}

ops::RopeScaling read_scaling(KeyReader& keys, const std::string& type, std::int64_t positions) {
  using Kind = ops::RopeScaling::Kind;
  ops::RopeScaling s;
  s.factor = needed_real(keys, "factor");
  if (s.factor < 1) keys.problem("factor", "at least 1 is expected");
  if (type == "linear") {
    s.kind = Kind::linear;
    keys.harmless({"original_max_position_embeddings"});
  } else if (type == "llama3") {
    s.kind = Kind::llama3;
    s.original = needed_real(keys, "original_max_position_embeddings");
    s.low = needed_real(keys, "low_freq_factor");
    s.high = needed_real(keys, "high_freq_factor");
  } else {
    s.kind = Kind::yarn;
    s.original = keys.real("original_max_position_embeddings", static_cast<double>(positions));
    s.beta_fast = keys.real("beta_fast", 32);
    s.beta_slow = keys.real("beta_slow", 1);
    s.truncate = keys.flag("truncate", true);
    s.attention_factor = read_attention_factor(keys, s.factor);
  }
  return s;
}

}  // namespace

void read_rope(KeyReader& keys, const LlamaLike& like, GptConfig& c, const std::string& source,
               std::vector<std::string>& problems) {
  c.rope_theta = keys.real("rope_theta", like.rope_theta);
  keys.only("partial_rotary_factor", 1.0, "rotating a part of a head is not supported");
  keys.only("rope_interleaved", false, "pairs of neighbours are not supported");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* held = keys.value(key);
    if (held == nullptr) continue;
    if (!held->is_object()) {
      keys.problem(key, "an object is expected");
      continue;
    }
    KeyReader rope(*held, source, std::string(key) + ".");
    const std::string type = rope.text("rope_type", rope.text("type", "default"));
    rope.harmless({"type"});
    const bool known = type == "linear" || type == "llama3" || type == "yarn";
    if (known)
      c.rope_scaling = read_scaling(rope, type, c.block_size);
    else if (type != "default")
      rope.problem(rope.has("rope_type") ? "rope_type" : "type",
                   "only linear, llama3 and yarn scaling of rotary angles are supported");
    rope.only("partial_rotary_factor", 1.0, "rotating a part of a head is not supported");
    c.rope_theta = rope.real("rope_theta", c.rope_theta);
    // If the scaling itself is refused, unknown keys of it are not reported.
    const auto more = rope.problems(type != "default" && !known);
    problems.insert(problems.end(), more.begin(), more.end());
  }
}

namespace {

/// The interval n if the first layer that differs is layer n; 0 if none differs.
std::int64_t interval_of(const std::vector<bool>& another) {
  const auto first = std::find(another.begin(), another.end(), true);
  return first == another.end() ? 0 : first - another.begin() + 1;
}

bool repeats(const std::vector<bool>& another, std::int64_t interval) {
  for (std::size_t i = 0; i < another.size(); ++i) {
    const bool last = interval > 0 && (static_cast<std::int64_t>(i) + 1) % interval == 0;
    if (another[i] != last) return false;
  }
  return true;
}

}  // namespace

void read_bare_layers(KeyReader& keys, const LlamaLike& like, GptConfig& c) {
  const std::int64_t every = keys.whole("no_rope_layer_interval", like.bare_layer);
  const nlohmann::json* with = keys.value("no_rope_layers");
  c.rope_skip_interval = every;
  if (with != nullptr) {
    std::vector<bool> bare;
    for (const auto& one : *with) bare.push_back(one == 0);
    c.rope_skip_interval = interval_of(bare);
    if (!with->is_array() || static_cast<std::int64_t>(bare.size()) != c.n_layer ||
        !repeats(bare, c.rope_skip_interval))
      keys.problem("no_rope_layers",
                   "only every n-th of all layers can be without rotary positions");
  }
  if (c.rope_skip_interval > c.n_layer) c.rope_skip_interval = 0;
}

namespace {

/// Finds the layers that have the window from a list of layer types.
void read_layer_types(KeyReader& keys, const nlohmann::json& types, GptConfig& c) {
  std::vector<bool> full;
  bool known = types.is_array() && static_cast<std::int64_t>(types.size()) == c.n_layer;
  for (const auto& type : types) {
    full.push_back(type == "full_attention");
    known = known && (full.back() || type == "sliding_attention");
  }
  c.window_first_layer = c.window_skip_interval = 0;
  if (known && std::all_of(full.begin(), full.end(), [](bool one) { return one; })) {
    c.window = 0;
    return;
  }
  if (known && full.front()) {
    c.window_first_layer = std::find(full.begin(), full.end(), false) - full.begin();
    known = std::none_of(full.begin() + c.window_first_layer, full.end(), [](bool x) { return x; });
  } else if (known) {
    c.window_skip_interval = interval_of(full);
    known = repeats(full, c.window_skip_interval);
  }
  if (!known)
    keys.problem("layer_types",
                 "full_attention is supported only in the first layers or in every n-th layer of "
                 "sliding_attention");
  else if (c.window == 0)
    keys.problem("sliding_window", "layer_types names layers with a window");
}

}  // namespace

void read_window(KeyReader& keys, const LlamaLike& like, GptConfig& c) {
  const bool said = keys.has("sliding_window"), always = like.window > 0;
  const std::int64_t size = said                           ? keys.needed("sliding_window")
                            : keys.knows("sliding_window") ? 0
                                                           : like.window;
  keys.harmless({"sliding_window"});
  const bool used = keys.flag("use_sliding_window", always || like.type == "llama");
  const std::int64_t first = keys.whole("max_window_layers", like.unwindowed);
  const nlohmann::json* types = keys.value("layer_types");
  c.window = used ? size : 0;
  if (types != nullptr) {
    read_layer_types(keys, *types, c);
  } else if (c.window > 0 && like.windows_where_bare) {
    keys.problem("use_sliding_window", "a window in layers without rotary positions alone");
  } else if (c.window > 0 && !always) {
    c.window_first_layer = first;
  }
  // A window that hides nothing is equivalent to none.
  if (c.window >= c.block_size || c.window_first_layer >= c.n_layer) c.window = 0;
  if (c.window == 0) c.window_first_layer = c.window_skip_interval = 0;
}

}  // namespace choir
