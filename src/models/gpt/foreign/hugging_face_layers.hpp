#pragma once
// Reading of the keys of config.json that describe layers: rotary positions and windows.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "choir/deck/key_reader.hpp"
#include "choir/models/gpt/gpt_config.hpp"

namespace choir {

/// Defaults of a class of transformers for keys that the file does not have.
struct LlamaLike {
  std::string_view type;
  bool tied = false;
  bool needs_kv_heads = false;  ///< its default is a number of one model
  bool has_biases = false;      ///< attention_bias and mlp_bias are keys of it
  bool qkv_bias = false;        ///< queries, keys and values always have biases
  bool qk_norm = false;
  std::int64_t head_width = 0;      ///< 0: hidden_size / num_attention_heads
  std::int64_t window = 0;          ///< 0: none, unless use_sliding_window
  std::int64_t unwindowed = 0;      ///< first layers that then have no window
  bool windows_where_bare = false;  ///< then only layers without rotary positions have one
  std::int64_t bare_layer = 0;      ///< interval of layers without rotary positions; 0: none
  double rope_theta = 10000;
};
/// Reads the rotary angles: version 5 has an object for them, version 4 two keys. Appends problems
/// of keys inside the object.
void read_rope(KeyReader& keys, const LlamaLike& like, GptConfig& c, const std::string& source,
               std::vector<std::string>& problems);
/// Reads which layers have no rotary positions; n_layer is known.
void read_bare_layers(KeyReader& keys, const LlamaLike& like, GptConfig& c);
/// Reads which layers have a window, and its length; n_layer and block_size are known.
void read_window(KeyReader& keys, const LlamaLike& like, GptConfig& c);

}  // namespace choir
