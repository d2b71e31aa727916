#pragma once
// Closed forms from the literature for the memory and the FLOPs of a GPT with feed-forward width
// 4h, GELU and dropout, in 16-bit mixed precision. The planner explains its numbers with them and
// is compared with them (allocation itself follows the counted plan). Bytes and FLOPs are doubles.
// All functions are pure.
//
// Activations: Korthikanti et al., "Reducing activation recomputation in large transformer models"
// (2022), Table 2 and section 4.2. FLOPs: Narayanan et al. (2021), PaLM (2022).
#include "choir/nn/pass.hpp"
#include "choir/parallel/pipeline/schedule.hpp"

namespace choir {

struct TransformerShape {
  double width = 0;     ///< h
  double layers = 0;    ///< L
  double heads = 0;     ///< a
  double sequence = 0;  ///< s, tokens
  double vocabulary = 0;
};

struct ActivationSplit {
  double micro_batch = 1;          ///< b, sequences
  double tensor = 1;               ///< t
  bool sequence_parallel = false;  ///< norms, dropouts and layer inputs are split over t too
  /// Definitions of the paper: selective recomputes the s^2 part of attention, which attention
  /// without stored scores does also under none; full recomputes every layer from its input.
  Recompute recompute = Recompute::none;
};

/// One layer, one micro-batch, one rank. Full recomputation keeps the whole layer input on every
/// rank unless sequence parallelism divides it.
double layer_activation_bytes(const TransformerShape& shape, const ActivationSplit& split);

/// Layers of the first stage, which holds the most, at the peak of the schedule.
double first_stage_activation_bytes(const TransformerShape& shape, const ActivationSplit& split,
                                    ScheduleKind kind, const PipelineShape& pipeline);
/// Activations outside of layers: the dropout mask of the embedding for every micro-batch in flight
/// on the first stage (s b h p / t), and without a pipeline the logits with their inputs (4 s b h /
/// t (1 + V / h)).
double embedding_activation_bytes(const TransformerShape& shape, const ActivationSplit& split,
                                  int stages);
double output_activation_bytes(const TransformerShape& shape, const ActivationSplit& split);

/// 12 L h^2 parameters of the layers at 18 bytes (16-bit value, 32-bit gradient, master and two
/// Adam moments), split over t and p. No ZeRO.
double layer_state_bytes(const TransformerShape& shape, double tensor, int stages);

/// Convention for counting the FLOPs of forward and backward of one token.
enum class FlopConvention {
  palm,      ///< 6 N + 12 L h s: nanoGPT and this program's log; N without position embedding
  megatron,  ///< 72 L h^2 (1 + s / 6h + V / 12 L h): every product, head included
  causal,    ///< 6 N + 6 L h s: only the half of attention that a causal mask leaves
};
/// `parameters` is the N of the conventions that use it.
double flops_per_token(FlopConvention convention, const TransformerShape& shape, double parameters);

/// Model FLOPs utilisation: fraction of the peak of all devices.
double model_flops_utilisation(double flops_per_step, double seconds, double devices,
                               double peak_flops_per_device);

}  // namespace choir
