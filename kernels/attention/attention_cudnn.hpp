#pragma once
// Attention by cuDNN, where it offers the problem: compiled once per problem, strides and device,
// kept in the device's plans.
// Floor: 4 D FLOPs per visible pair forward, 10 D backward; published for H200 and bf16, heads 128
// wide, causal: 484 to 688 TFLOP/s forward and 370 to 581 backward from T = 2048 to 32768.
#include <cstdint>
#include <string>

#include "choir/device/device.hpp"
#include "choir/ops/attention.hpp"

namespace choir::cudnn {

/// Added to the scaled scores: element (b, h, i, j) at data + b*batch_stride + h*head_stride +
/// i*row_stride + j, of the problem's dtype. A batch or head stride of 0: the same for all. The row
/// stride is free, so that rel-shift (Transformer-XL) is a view, not a copy.
struct AttentionBias {
  const void* data = nullptr;  ///< nullptr: none
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
  /// Its gradient in backward, packed [B or 1, H or 1, Tq, Tk] as the strides say; or nullptr.
  void* gradient = nullptr;
};

/// Everything about the operands but their addresses.
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
  /// backward gives the same bits each time. It costs B H Tq Tk of the operands' type as scratch
  /// memory; without it dQ is gathered by f32 atomics.
  bool deterministic = true;
  Strides q, k, v, out, d_out, d_q, d_k, d_v;
  Bias bias;
  friend bool operator==(const AttentionLayout&, const AttentionLayout&) = default;
};
AttentionLayout layout_of(const ops::AttentionForward& args, const AttentionBias& bias = {});
AttentionLayout layout_of(const ops::AttentionBackward& args, const AttentionBias& bias = {});

/// Why cuDNN is not asked at all; empty when it is. A pure function: no device, no library.
std::string attention_outside_rules(const ops::AttentionProblem& problem,
                                    const AttentionLayout& layout);

/// Bytes: where cuDNN's workspace, and what we keep before it, begins. Tensors of an arena begin
/// at 64.
inline constexpr std::int64_t kWorkspaceBoundary = 256;
/// Bytes of scratch memory for any of our devices, with what a boundary may cost in memory that
/// does not begin at one. A pure function, so that memory is planned without a GPU; a plan that
/// wants more is refused.
std::int64_t attention_workspace(const ops::AttentionProblem& problem,
                                 const AttentionLayout& layout);

/// Bytes of the f32 sum that dQ is gathered in, zeroed before the plan runs; 0 where the plan
/// gathers it by itself.
std::int64_t d_q_sum_bytes(const ops::AttentionProblem& problem, const AttentionLayout& layout);

/// Whether cuDNN takes the problem on this device: compiles the plan that will run it, or finds it
/// (or its refusal) again. If not, `why` (may be nullptr) holds our reason or cuDNN's words.
bool attention_supported(Device& device, const ops::AttentionProblem& problem,
                         const AttentionLayout& layout, std::string* why);

/// Queue the work on the stream. args.workspace holds attention_workspace() bytes; all addresses
/// are 16-byte aligned. Throw Error where it is not supported.
void attention_forward(const Stream& stream, const ops::AttentionForward& args,
                       const AttentionBias& bias = {});
void attention_backward(const Stream& stream, const ops::AttentionBackward& args,
                        const AttentionBias& bias = {});

}  // namespace choir::cudnn
