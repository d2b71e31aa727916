#pragma once
// Attention by cuDNN, for the problems that it supports: compiled once per problem, strides and
// device, and kept in the device's plans.
// Floor: 4 D FLOPs per visible pair forward, 10 D backward; published for H200 and bf16, heads 128
// wide, causal: 484 to 688 TFLOP/s forward and 370 to 581 backward from T = 2048 to 32768.
#include <cstdint>
#include <string>

#include "choir/device/device.hpp"
#include "kernels/attention/attention.hpp"

namespace choir::cudnn {

/// Added to the scaled scores: element (b, h, i, j) is at data + b*batch_stride + h*head_stride +
/// i*row_stride + j, of the problem's dtype. A batch or head stride of 0 broadcasts. The row stride
/// is free, so that rel-shift (Transformer-XL) is a view, not a copy.
struct AttentionBias {
  const void* data = nullptr;  ///< nullptr: none
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
  /// Gradient of the bias in backward, packed [B or 1, H or 1, Tq, Tk] according to the strides; or
  /// nullptr.
  void* gradient = nullptr;
};

/// All properties of the operands except their addresses.
struct AttentionLayout {
  struct Strides {
    std::int64_t batch = 0, position = 0;
    friend bool operator==(const Strides&, const Strides&) = default;
  };
  struct Bias {
    bool present = false, gradient = false;
    std::int64_t batch = 0, head = 0, row = 0;
    friend bool operator==(const Bias&, const Bias&) = default;
  };
  bool backward = false;
  bool log_sum_exp = true;  ///< forward writes it
  /// Backward gives the same bits each time. This costs B H Tq Tk elements of the operands' type as
  /// scratch memory; without it dQ is summed with f32 atomics.
  bool deterministic = true;
  Strides q, k, v, out, d_out, d_q, d_k, d_v;
  Bias bias;
  friend bool operator==(const AttentionLayout&, const AttentionLayout&) = default;
};
AttentionLayout layout_of(const ops::AttentionForward& args, const AttentionBias& bias = {});
AttentionLayout layout_of(const ops::AttentionBackward& args, const AttentionBias& bias = {});

/// The reason why cuDNN is not queried at all; empty if it is. A pure function: no device, no
/// library.
std::string attention_outside_rules(const ops::AttentionProblem& problem,
                                    const AttentionLayout& layout);

/// Alignment in bytes of cuDNN's workspace and of our own data in front of it. Tensors of an arena
/// are aligned to 64.
inline constexpr std::int64_t kWorkspaceBoundary = 256;
/// Bytes of scratch memory that suffice on every supported device, with a margin for memory that is
/// not aligned to kWorkspaceBoundary. A pure function, so that memory is planned without a GPU; a
/// plan that needs more is refused.
std::int64_t attention_workspace(const ops::AttentionProblem& problem,
                                 const AttentionLayout& layout);

/// Bytes of the f32 sum of dQ, zeroed before the plan runs; 0 if the plan sums dQ by itself.
std::int64_t d_q_sum_bytes(const ops::AttentionProblem& problem, const AttentionLayout& layout);

/// True if cuDNN supports the problem on this device. Compiles the plan that will run it, or looks
/// up the plan or the refusal. If false, `why` (may be nullptr) receives our reason or cuDNN's
/// message.
bool attention_supported(Device& device, const ops::AttentionProblem& problem,
                         const AttentionLayout& layout, std::string* why);

/// Queue the work on the stream. args.workspace holds attention_workspace() bytes; all addresses
/// are 16-byte aligned. Throw Error if the problem is not supported.
void attention_forward(const Stream& stream, const ops::AttentionForward& args,
                       const AttentionBias& bias = {});
void attention_backward(const Stream& stream, const ops::AttentionBackward& args,
                        const AttentionBias& bias = {});

}  // namespace choir::cudnn
