#include "choir/train/model_instance.hpp"

#include "choir/ops/reduce.hpp"

namespace choir {

ModelInstance::ModelInstance(const Options& options, Device& device, Communicator& data,
                             std::size_t arena_bytes)
    : options_(options),
      device_(&device),
      stream_(device, &work_),
      model_(options.model, parameters_),
      storage_(std::make_unique<ParameterStorage>(parameters_, options.precision, device, data,
                                                  options.training)),
      arena_(device, arena_bytes),
      pass_(stream_, arena_, options.precision, options.seed),
      scalar_(device, sizeof(double)) {
  const Shape table = model_.rope_table_shape();
  if (table.count() == 0) return;
  const DType type = options.precision.statistic;
  tables_ = Buffer(device, static_cast<std::size_t>(table.count()) * size_of(type));
  model_.prepare(pass_, {tables_.data(), type, table});
}

double ModelInstance::loss_sum(const TokenBatch& batch) {
  pass_.begin(Mode::evaluate,
              {.batch = batch.sequences, .tokens = batch.inputs.count() / batch.sequences},
              batch.first_sample);
  BucketHooks everything_resident;
  const Tensor losses = model_.loss(pass_, batch.inputs, batch.targets, 1.0, everything_resident);
  const TensorView total{scalar_.data(), DType::f64, {1}};
  ops::tree_sum(stream_, losses, total);
  return device_->kind() == DeviceKind::null ? 0.0 : total.as<double>()[0];
}

void ModelInstance::add_to(MemoryPlan& plan) const {
  storage_->add_to(plan);
  plan.add("tables", tables_.bytes() + scalar_.bytes());
  plan.add("activations", arena_.peak());
}

}  // namespace choir
