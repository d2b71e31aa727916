#include "choir/models/family.hpp"

#include "choir/core/error.hpp"
#include "kernels/bench/bench_table.hpp"

namespace choir {

BatchShape ModelFamily::shape(const ModelConfig&, std::int64_t) const {
  throw Error(ExitCode::other, std::string(name()) + ": micro-batches have no fixed shape");
}

void ModelFamily::clear(ModelBatch&) const {
  throw Error(ExitCode::other, std::string(name()) + ": micro-batches have no rows of padding");
}

ops::BenchShape ModelFamily::op_shape(const ModelConfig&, const BatchShape&) const {
  return {.rows = 0};
}

HostBatch::HostBatch(const ModelConfig& config, const BatchShape& shape)
    : batch(config.family().fields(config, shape)),
      family_(&config.family()),
      memory_(bytes_of_fields(batch)) {
  std::byte* at = memory_.data();
  for (BatchField& field : batch.fields()) {
    field.view.data = at;
    at += padded_field_bytes(field.view);
  }
  family_->fill(config, shape, batch);
}

}  // namespace choir
