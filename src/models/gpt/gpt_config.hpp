#pragma once
// The shape of a decoder-only transformer. nanoGPT, GPT-2 and Llama are instances of it.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/core/enum_words.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/model.hpp"
#include "choir/models/model_config.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/layers/norms.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/activation.hpp"
#include "choir/ops/norm.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/rope/rope.hpp"

namespace choir::ops {

constexpr auto words_of(Norm) {
  return words<Norm>({{Norm::layernorm, "layernorm"}, {Norm::rmsnorm, "rmsnorm"}});
}
constexpr auto words_of(Activation) {
  using enum Activation;
  return words<Activation>({{gelu, "gelu"},
                            {gelu_tanh, "gelu_tanh"},
                            {relu, "relu"},
                            {swiglu, "swiglu"},
                            {silu, "silu"},
                            {geglu, "geglu"}});
}
constexpr auto words_of(AttentionImplementation) {
  using enum AttentionImplementation;
  return words<AttentionImplementation>({{automatic, "auto"}, {own, "own"}, {cudnn, "cudnn"}});
}
constexpr auto words_of(RopeScaling::Kind) {
  using enum RopeScaling::Kind;
  return words<RopeScaling::Kind>({{none, "none"},
                                   {linear, "linear"},
                                   {llama3, "llama3"},
                                   {yarn, "yarn"},
                                   {longrope, "longrope"}});
}

}  // namespace choir::ops

namespace choir {

enum class Position { learned, rope };
constexpr auto words_of(Position) {
  return words<Position>({{Position::learned, "learned"}, {Position::rope, "rope"}});
}
constexpr auto words_of(NormPlace) {
  return words<NormPlace>(
      {{NormPlace::pre, "pre"}, {NormPlace::post, "post"}, {NormPlace::both, "both"}});
}
/// The layers whose rotary angles are scaled: all, or those without a window.
enum class ScaledLayers { all, full };
constexpr auto words_of(ScaledLayers) {
  return words<ScaledLayers>({{ScaledLayers::all, "all"}, {ScaledLayers::full, "full"}});
}
/// The features over which queries and keys are normalised: those of a head, or of all heads.
enum class QkNormSpan { head, width };
constexpr auto words_of(QkNormSpan) {
  return words<QkNormSpan>({{QkNormSpan::head, "head"}, {QkNormSpan::width, "width"}});
}
/// Biases of a group of layers: like GptConfig::bias, or set separately.
enum class Biases { as_bias, yes, no };
constexpr auto words_of(Biases) {
  return words<Biases>({{Biases::as_bias, "auto"}, {Biases::yes, "yes"}, {Biases::no, "no"}});
}

/// The properties of a block in which blocks of one stack may differ. Parameters, caches, FLOPs,
/// the costs of units and the files of other programs all take them from GptConfig::kind_of(), so
/// that a new difference between layers is a member here.
struct LayerKind {
  std::int64_t window = 0;     ///< keys that a query sees, itself among them; 0: all before it
  bool rotates = false;        ///< queries and keys carry rotary positions
  bool local = false;          ///< by the angles of layers with a window
  std::int64_t ffn_width = 0;  ///< of its feed-forward layer
  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

struct GptConfig {
  std::int64_t vocab_size = 0;
  std::int64_t block_size = 1024;  ///< longest sequence, T
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_kv_head = 12;  ///< divides n_head
  std::int64_t n_embd = 768;    ///< C, a multiple of n_head unless heads have a width of their own
  std::int64_t own_head_width = 0;     ///< D; 0: n_embd / n_head
  std::int64_t ffn_width = 3072;       ///< F
  int tile = 1;                        ///< tiles of the feed-forward layer, see FeedForward
  bool bias = true;                    ///< in linear layers and layer norms
  Biases qkv_bias = Biases::as_bias;   ///< of queries, keys and values
  Biases norm_bias = Biases::as_bias;  ///< of layer norms
  double dropout = 0;                  ///< on the embedding and on both branches of every block
  bool tied = true;                    ///< head and token embedding share one matrix
  ops::Norm norm = ops::Norm::layernorm;
  double norm_eps = 1e-5;
  bool norm_offset = false;               ///< norms multiply by 1 + weight
  NormPlace norm_place = NormPlace::pre;  ///< of both branches of every block
  bool parallel_branches = false;         ///< both branches of a block read its input
  ops::Activation activation = ops::Activation::gelu;
  Position position = Position::learned;
  std::int64_t rope_width = 0;  ///< first features of a head that rotate, R; 0: all
  double rope_theta = 10000;
  double rope_local_theta = 0;      ///< of layers with a window; 0: rope_theta
  ops::RopeScaling rope_scaling{};  ///< without the divisors of longrope; see angle_scaling()
  /// Divisors of frequencies, a number for each pair that rotates, as in a deck (longrope).
  std::vector<std::string> rope_short_factors, rope_long_factors;
  ScaledLayers rope_scaling_layers = ScaledLayers::all;
  /// Layers n - 1, 2 n - 1, ... do not rotate; 0: all layers rotate.
  std::int64_t rope_skip_interval = 0;
  bool qk_norm = false;  ///< RMSNorm of queries and keys, before they are rotated
  QkNormSpan qk_norm_span = QkNormSpan::head;
  std::int64_t window = 0;  ///< keys that a query sees, itself among them; 0: all before it
  /// Layers before this one, and layers n - 1, 2 n - 1, ... (0: none), have no window.
  std::int64_t window_first_layer = 0, window_skip_interval = 0;
  double attention_scale = 0;    ///< factor of scores; 0: 1 / sqrt(head width)
  double attention_softcap = 0;  ///< c: scores become c tanh(scores / c); 0: they stay
  double embedding_scale = 1;    ///< factor of the embedding
  double residual_scale = 1;     ///< factor of the outputs of both branches
  double logit_scale = 1;        ///< factor of logits
  double logit_softcap = 0;      ///< of scaled logits, like attention_softcap
  ops::AttentionImplementation attention = ops::AttentionImplementation::automatic;
  bool attention_deterministic = false;  ///< deterministic backward, also outside reproducible mode
  bool gelu_in_product = false;          ///< gelu by a kernel that also computes its product
  Recompute recompute = Recompute::none;  ///< in every block, while training
  double label_smoothing = 0;             ///< of the targets, while training; in [0, 1)
  double z_loss = 0;                      ///< weight of the square of log-sum-exp
  std::int64_t head_chunk = kAutoChunk;   ///< rows; see DecoderTower. 0: the head is computed whole
  std::int64_t head_chunk_limit = 0;      ///< most rows of an automatic chunk; 0: no limit
  bool packed = false;                    ///< rows have several documents (add_documents)
  Lora lora{};                            ///< of every block
  std::int64_t attention_chunk = 0;       ///< positions of a tile of attention; 0: no tiles

  static constexpr std::int64_t kAutoChunk = -1;  ///< usual_head_chunk(), or head_chunk_limit

  std::int64_t head_width() const { return own_head_width > 0 ? own_head_width : n_embd / n_head; }
  /// R, the features of a head that rotate with rotary positions.
  std::int64_t rotated_width() const { return rope_width > 0 ? rope_width : head_width(); }
  bool norms_all_heads() const { return qk_norm && qk_norm_span == QkNormSpan::width; }
  /// H D, the width of the attention output.
  std::int64_t attention_width() const { return n_head * head_width(); }
  bool has(Biases part) const { return part == Biases::as_bias ? bias : part == Biases::yes; }
  bool has_norm_bias() const { return norm == ops::Norm::layernorm && has(norm_bias); }
  LayerKind kind_of(std::int64_t layer) const {
    const auto is_last_of = [&](std::int64_t interval) {
      return interval > 0 && (layer + 1) % interval == 0;
    };
    const bool all = layer < window_first_layer || is_last_of(window_skip_interval);
    const bool rotates = position == Position::rope && !is_last_of(rope_skip_interval);
    return {.window = all ? 0 : window,
            .rotates = rotates,
            .local = rotates && !all && window > 0 && has_local_angles(),
            .ffn_width = ffn_width};
  }
  /// True if layers with a window rotate by angles of their own.
  bool has_local_angles() const {
    return position == Position::rope && window > 0 &&
           ((rope_local_theta > 0 && rope_local_theta != rope_theta) ||
            (rope_scaling_layers == ScaledLayers::full &&
             rope_scaling.kind != ops::RopeScaling::Kind::none));
  }
  /// The sum over all layers of number(kind).
  template <class Number>
  double over_layers(const Number& number) const {
    double sum = 0;
    for (std::int64_t layer = 0; layer < n_layer; ++layer)
      sum += static_cast<double>(number(kind_of(layer)));
    return sum;
  }
  /// Elements of the matrices of a layer, without adapters.
  std::int64_t matrix_weights(const LayerKind& kind) const {
    const std::int64_t heads = 2 * attention_width() + 2 * n_kv_head * head_width();
    return n_embd * (heads + kind.ffn_width * (1 + ops::activation_inputs(activation)));
  }
  /// Pairs of query and key that a layer sees in a sequence of the block size.
  double visible_pairs(const LayerKind& kind) const {
    const auto t = static_cast<double>(block_size), w = static_cast<double>(kind.window);
    return w > 0 && w < t ? t * w - w * (w - 1) / 2 : t * (t + 1) / 2;
  }
};

const ModelFamily& family_of(const GptConfig& config);

/// The scaling of rotary angles with its divisors. Those of longrope are the long factors if
/// block_size is above the original length, for every sequence of the run, however short it is.
ops::RopeScaling angle_scaling(const GptConfig& config);
/// The numbers of a list of factors; 0 for a text that is not a number above 0, which no deck has.
std::vector<double> rope_factors(const std::vector<std::string>& list);

/// Appends the term of z_loss, if it is above 0, to terms of which the first is the loss of tokens,
/// with the targets of that term.
void add_z_loss(double z_loss, std::vector<LossTerm>& terms);
/// The terms of a model whose only predictions are tokens.
std::vector<LossTerm> token_loss_terms(const GptConfig& config);

/// A micro-batch of token sequences: "inputs" and "targets", [B*T] i32; targets below 0 are
/// ignored. If `targets` is empty, the batch has none, as for generation.
ModelBatch token_batch(std::int64_t samples, const TensorView& inputs,
                       const TensorView& targets = {}, std::int64_t first_sample = 0);

inline constexpr std::string_view kDocumentBegins = "document_begins",
                                  kDocumentPositions = "document_positions";
/// Adds the documents of the rows of a packed model, [B*T] i32: for each position the beginning of
/// its document in the row, and the position within the document.
void add_documents(ModelBatch& batch, const TensorView& begins, const TensorView& positions);

}  // namespace choir
