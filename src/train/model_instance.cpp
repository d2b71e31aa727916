#include "choir/train/model_instance.hpp"

#include "choir/ops/gemm.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

TensorSplit split_of(const ModelInstance::Options& options, const Communicator& tensor) {
  return {.rank = tensor.rank(),
          .ranks = tensor.size(),
          .sequence = options.sequence && tensor.size() > 1};
}

std::uint64_t pass_seed(const ModelInstance::Options& options, const Mesh& mesh) {
  const bool own = options.control == NegativeControl::dropout_per_rank;
  return options.seed + (own ? static_cast<std::uint64_t>(mesh.rank()) : 0);
}

ParameterSet& altered(const ModelInstance::Options& options, ParameterSet& parameters) {
  if (options.alter) options.alter(parameters);
  return parameters;
}

}  // namespace

ModelInstance::ModelInstance(const Options& options, Device& device, Mesh& mesh,
                             std::size_t arena_bytes)
    : options_(options),
      device_(&device),
      tensor_(&mesh.along(Axis::tensor)),
      stream_(device, &work_),
      parameters_(split_of(options, *tensor_)),
      model_(options.model, parameters_),
      storage_(std::make_unique<ParameterStorage>(altered(options, parameters_), options.precision,
                                                  device, mesh.along(Axis::data),
                                                  options.training)),
      arena_(device, arena_bytes),
      pass_(stream_, arena_, options.precision, pass_seed(options, mesh),
            {.communicator = tensor_, .sequence = options.sequence, .order = options.order}),
      scalar_(device, sizeof(double)) {
  pass_.inject(options.control);
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
  const Tensor inputs = on_device(batch.inputs), targets = on_device(batch.targets);
  const Tensor losses = model_.loss(pass_, inputs, targets, 1.0, everything_resident);
  const TensorView total{scalar_.data(), DType::f64, {1}};
  ops::tree_sum(stream_, losses, total);
  double sum = 0;
  device_->copy_to_host(&sum, total.data, sizeof sum);
  return sum;
}

Tensor ModelInstance::on_device(const TensorView& host) {
  if (device_->host_visible()) return Tensor().view(host);
  Tensor there = arena_.allocate(host.dtype, host.shape, "evaluation batch");
  device_->copy_from_host(there.data, host.data, host.bytes());
  return there;
}

void ModelInstance::add_to(MemoryPlan& plan) const {
  storage_->add_to(plan);
  const std::size_t products = ops::gemm_device_bytes(device_->plans_for());
  if (products > 0) plan.add("matrix products", products);
  plan.add("tables", tables_.bytes() + scalar_.bytes());
  plan.add("activations", arena_.peak());
}

}  // namespace choir
