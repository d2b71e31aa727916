#pragma once
// One micro-batch of a shape in host memory, for those who make their own: plans, probes, tests.
#include <cstddef>
#include <vector>

#include "choir/model/model_config.hpp"

namespace choir {

/// Bytes of one field of a batch with the gap behind it: each begins at a multiple of 64.
std::size_t padded_field_bytes(const TensorView& field);
/// Of all fields one after another. Views need not have memory.
std::size_t bytes_of_fields(ModelBatch batch);
/// The fields of a micro-batch of this shape, without memory.
ModelBatch fields_of(const ModelConfig& config, const BatchShape& shape);

class HostBatch {
 public:
  /// Full rows of zeros: tokens 0, silence, labels 0, all lengths as the shape allows. Views of
  /// memory that lives with this.
  HostBatch(const ModelConfig& config, const BatchShape& shape);
  HostBatch(const HostBatch&) = delete;
  HostBatch& operator=(const HostBatch&) = delete;

  /// Speech: every row becomes padding (all lengths 0, labels -1).
  void clear();

  ModelBatch batch;

 private:
  void add_speech(const FastConformerConfig& config, const BatchShape& shape);
  std::vector<std::byte> memory_;
};

}  // namespace choir
