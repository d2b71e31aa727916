#pragma once
// Causal multi-head self-attention with grouped queries, norms of queries and keys, rotary
// positions, a sliding window, and a cache of keys and values for generation. If ranks share
// positions (src/nn/axes/context_axis.hpp), they communicate in attend().
#include <algorithm>
#include <memory>
#include <string>

#include "choir/nn/layers/dropout.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/layers/norms.hpp"
#include "kernels/attention/attention.hpp"
#include "src/nn/axes/context_axis.hpp"

namespace choir {

class SelfAttention {
 public:
  struct Options {
    std::int64_t width = 0;       ///< C
    std::int64_t heads = 0;       ///< H
    std::int64_t kv_heads = 0;    ///< divides heads
    std::int64_t head_width = 0;  ///< D; 0: width / heads
    bool bias = true;             ///< bias of the output
    bool qkv_bias = true;
    bool head_norm = false;       ///< RMSNorm of each head of queries and keys, before positions
    bool norm_all_heads = false;  ///< those norms are over all heads of a row together
    double norm_eps = 1e-5;
    bool one_plus_weight = false;  ///< of those norms, see ResidualNorm
    std::int64_t window = 0;       ///< keys that a query sees, itself included; 0: all before it
    bool rope = false;
    std::int64_t rope_table = 0;  ///< the table of its angles, if forward() gets several
    double scale = 0;             ///< of scores; 0: 1 / sqrt(D)
    double softcap = 0;           ///< of scaled scores, see ops::AttentionProblem; 0: none
    double dropout = 0;           ///< on the output; attention weights are never dropped
    double factor = 1;            ///< of the output after dropout
    double output_init_std = 0.02;
    ops::AttentionImplementation implementation = ops::AttentionImplementation::automatic;
    /// Deterministic backward also outside reproducible mode; see ops::AttentionProblem.
    bool deterministic = false;
    Lora lora{};  ///< adapters of q, k, v and o
    /// If not 0, attention runs in tiles of this many positions of one sequence, and backward
    /// computes queries, keys, values and outputs again: forward keeps
    /// its input alone, H D + 2 Hkv D + H D elements of each position less, for the FLOPs of a
    /// second forward. For a pass without streams and context ranks, and no adapters.
    std::int64_t tile = 0;
  };
  /// Registers `name`.qkv (rows q | k | v), `name`.output and, with head_norm, `name`.query_norm
  /// and `name`.key_norm [D], or [H D] and
  /// [Hkv D], in the current bucket.
  SelfAttention(ParameterSet& parameters, const std::string& name, const Options& options);

  /// x [B*T, C] -> [B*T, C]. `rope_table` [tables, positions, D] is needed with rope; it begins at
  /// position 0 or, for endless streams, at the position of this pass. `source`, the same in both
  /// calls, is the norm that produced x and recomputes it for backward; then x is not kept.
  Tensor forward(Pass& pass, const Tensor& x, const TensorView& rope_table,
                 ResidualNorm* source = nullptr);
  Tensor backward(Pass& pass, const Tensor& d_y, const TensorView& rope_table,
                  ResidualNorm* source = nullptr);

  /// Creates the track of keys and values for streams of at most `capacity` positions. In an
  /// endless stream each position sees that many positions, itself included, or the layer's window
  /// if that is smaller.
  void remember(Pass& pass, StreamState& state, std::int64_t capacity) const;

  /// Number of `heads` that a rank holds, alone or together with its neighbours.
  static std::int64_t heads_of_rank(std::int64_t heads, const TensorSplit& split);

 private:
  /// Rotated q | k | v of this rank's positions -> its rows of softmax(Q K^T) V, and back. The
  /// former saves tensors for the latter. Collective over the context axis.
  Tensor attend(Pass& pass, Tensor qkv) const;
  Tensor attend_backward(Pass& pass, Tensor d_out) const;
  /// The same with this rank's queries and the gathered keys of all positions.
  Tensor attend_to_all(Pass& pass, Tensor qkv) const;
  Tensor attend_to_all_backward(Pass& pass, Tensor d_out) const;
  /// True if this layer passes keys around the ranks instead of gathering them.
  bool goes_round(const Pass& pass) const;
  Tensor attend_round(Pass& pass, Tensor qkv) const;
  Tensor attend_round_backward(Pass& pass, Tensor d_out) const;
  /// The attention of one run of positions with itself, as ranks that exchange heads have it.
  ops::AttentionProblem problem_of_run(const Pass& pass) const;
  /// The attention of `queries` positions over `keys` positions, of which they are the last.
  ops::AttentionProblem problem(const Pass& pass, const ContextHeads& heads, std::int64_t queries,
                                std::int64_t keys) const;
  ops::AttentionProblem problem(const Pass& pass) const;
  /// The attention of the queries of one run over the keys from the first position on.
  ops::AttentionProblem problem(const Pass& pass, const Sequence::Run& run) const;
  /// Normalises heads first .. first + count of rows of qkv in place; normalise_back() turns
  /// gradients of the outputs into gradients of the inputs. Local, except with norm_all_heads.
  void normalise(Pass& pass, ResidualNorm& norm, const Tensor& qkv, std::int64_t first,
                 std::int64_t count) const;
  void normalise_back(Pass& pass, ResidualNorm& norm, const Tensor& d_qkv, std::int64_t first,
                      std::int64_t count) const;
  /// Copies heads first .. first + count into a tensor of their own [rows * count, D], or
  /// [rows, count * D] with norm_all_heads; put_heads() copies them back.
  Tensor heads_alone(Pass& pass, const Tensor& qkv, std::int64_t first, std::int64_t count) const;
  void put_heads(Pass& pass, const Tensor& heads, const Tensor& qkv, std::int64_t first,
                 std::int64_t count) const;
  void rotate(Pass& pass, const Tensor& qkv, const TensorView& table, bool inverse) const;
  /// Rotates the first `heads` of rows that are positions of one sequence.
  void rotate_positions(Pass& pass, const TensorView& rows, std::int64_t heads, std::int64_t first,
                        const TensorView& table, bool inverse) const;
  /// The angles of this layer.
  TensorView angles_of(const TensorView& table) const;
  bool in_tiles(const Pass& pass) const {
    return options_.tile > 0 && pass.sequence().state == nullptr;
  }
  /// The end of the tile of positions that begins at `first`.
  std::int64_t tile_end(const Pass& pass, std::int64_t first) const {
    return std::min(first + options_.tile, pass.sequence().tokens);
  }
  /// Consecutive positions of a sequence.
  struct Tile {
    std::int64_t first = 0, count = 0;
    std::int64_t end() const { return first + count; }
  };
  // The parts of tiles, on whole rows [N, C] of all sequences, of which sequence b has rows
  // [b T, (b + 1) T). Local.
  /// Rotated keys and values of one sequence: rows k | v, [T, 2 Hkv D].
  Tensor keys_of(Pass& pass, const TensorView& rows, std::int64_t b, const TensorView& rope_table);
  /// Rotated queries of `count` positions of it, [count, H D].
  Tensor queries_of(Pass& pass, const TensorView& rows, std::int64_t b, const Tile& positions,
                    const TensorView& rope_table);
  /// The attention of queries of sequence b over the keys up to the last of them.
  ops::AttentionProblem problem_of_tile(const Pass& pass, std::int64_t b,
                                        const Tile& queries) const;
  Tensor attend_tile(Pass& pass, std::int64_t b, const Tile& positions, const TensorView& q,
                     const TensorView& kv, const TensorView& lse) const;
  Tensor forward_in_tiles(Pass& pass, const Tensor& x, const TensorView& rope_table, bool keep_x);
  Tensor backward_in_tiles(Pass& pass, const Tensor& d_y, const TensorView& rope_table,
                           ResidualNorm* source);
  /// Gradients of queries of sequence b in d_qkv, and those of its keys and values, which are
  /// returned, [T, 2 Hkv D].
  Tensor sequence_backward(Pass& pass, const Tensor& rows, const Tensor& d_rows, std::int64_t b,
                           const TensorView& rope_table, const Tensor& d_qkv);
  /// Query, key and value inside packed rows [B, T, (H + 2 Hkv) * D].
  ops::AttentionOperand packed(const Tensor& qkv, std::int64_t first_head, const Pass& pass) const;
  /// The same for the rows of a run.
  ops::AttentionOperand packed(const Tensor& rows, std::int64_t first_head,
                               const Sequence::Run& run) const;
  /// Keys and values of all positions; in a row, keys precede values.
  KeyGather gather(Pass& pass) const { return {pass, 2 * options_.kv_heads * head_width_}; }
  HeadExchange exchange(Pass& pass) const {
    return {pass, options_.heads, options_.kv_heads, head_width_};
  }
  /// Appends keys and values of this pass to those of the streams, and makes `call` read all of
  /// them.
  void read_streams(Pass& pass, ops::AttentionForward& call) const;

  Options options_;  // with the heads of this rank
  std::int64_t head_width_;
  Linear qkv_, output_;
  std::unique_ptr<ResidualNorm> query_norm_, key_norm_;
  Dropout dropout_;
};

}  // namespace choir
