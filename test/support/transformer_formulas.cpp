#include "test/support/transformer_formulas.hpp"

namespace choir {

double layer_activation_bytes(const TransformerShape& shape, const ActivationSplit& split) {
  const double sbh = shape.sequence * split.micro_batch * shape.width;
  const double t = split.tensor, unsplit = split.sequence_parallel ? t : 1;
  if (split.recompute == Recompute::full) return 2 * sbh / unsplit;
  const double scores = 5 * shape.heads * shape.sequence / shape.width;
  const double inside = 24 + (split.recompute == Recompute::none ? scores : 0);
  return sbh * (10 / unsplit + inside / t);
}

double first_stage_activation_bytes(const TransformerShape& shape, const ActivationSplit& split,
                                    ScheduleKind kind, const PipelineShape& pipeline) {
  const double chunk_layers = shape.layers / pipeline.virtual_stages();
  return layer_activation_bytes(shape, split) * chunk_layers * promised_live(kind, pipeline, 0);
}

double embedding_activation_bytes(const TransformerShape& shape, const ActivationSplit& split,
                                  int stages) {
  return shape.sequence * split.micro_batch * shape.width * stages / split.tensor;
}

double output_activation_bytes(const TransformerShape& shape, const ActivationSplit& split) {
  return 4 * shape.sequence * split.micro_batch * shape.width / split.tensor *
         (1 + shape.vocabulary / shape.width);
}

double layer_state_bytes(const TransformerShape& shape, double tensor, int stages) {
  return 18 * 12 * shape.layers * shape.width * shape.width / (tensor * stages);
}

double flops_per_token(FlopConvention convention, const TransformerShape& shape,
                       double parameters) {
  const double attention = 12 * shape.layers * shape.width * shape.sequence;
  switch (convention) {
    case FlopConvention::palm:
      return 6 * parameters + attention;
    case FlopConvention::causal:
      return 6 * parameters + attention / 2;
    case FlopConvention::megatron:
      break;
  }
  return 72 * shape.layers * shape.width * shape.width + attention +
         6 * shape.width * shape.vocabulary;
}

double model_flops_utilisation(double flops_per_step, double seconds, double devices,
                               double peak_flops_per_device) {
  return flops_per_step / (seconds * devices * peak_flops_per_device);
}

}  // namespace choir
