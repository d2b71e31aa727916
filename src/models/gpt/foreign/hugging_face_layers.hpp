#pragma once
// What keys of config.json say about layers: how positions are rotated, and what they see.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "choir/deck/key_reader.hpp"
#include "choir/models/gpt/gpt_config.hpp"

namespace choir {

/// What a class of transformers assumes where the file is silent.
struct LlamaLike {
  std::string_view type;
  bool tied = false;
  bool needs_kv_heads = false;  ///< its default is a number of one model
  bool has_biases = false;      ///< attention_bias and mlp_bias are keys of it
  bool qkv_bias = false;        ///< queries, keys and values always have biases
  bool qk_norm = false;
  std::int64_t head_width = 0;      ///< 0: hidden_size / num_attention_heads
  std::int64_t window = 0;          ///< 0: none, unless use_sliding_window
  std::int64_t unwindowed = 0;      ///< layers at the start that then have none
  bool windows_where_bare = false;  ///< then those alone that have no rotary positions
  std::int64_t bare_layer = 0;      ///< every so many-th layer has no rotary positions; 0: none
  double rope_theta = 10000;
};
/// The angles: version 5 has an object for them, version 4 two keys. Problems of keys inside the
/// object are appended.
void read_rope(KeyReader& keys, const LlamaLike& like, GptConfig& c, const std::string& source,
               std::vector<std::string>& problems);
/// Which layers have no rotary positions; n_layer is known.
void read_bare_layers(KeyReader& keys, const LlamaLike& like, GptConfig& c);
/// Which layers have a window, and how long it is; n_layer and block_size are known.
void read_window(KeyReader& keys, const LlamaLike& like, GptConfig& c);

}  // namespace choir
