#include "choir/train/engine/model_instance.hpp"

#include <array>
#include <tuple>

#include "choir/ops/gemm.hpp"
#include "choir/ops/reduce.hpp"
#include "choir/train/engine/stage_chain.hpp"

namespace choir {
namespace {

TensorSplit split_of(const ModelInstance::Options& options, const Communicator& tensor) {
  return {.rank = tensor.rank(),
          .ranks = tensor.size(),
          .sequence = options.sequence && tensor.size() > 1};
}

ModelCut cut_for(const ModelInstance::Options& options, const Communicator& stages) {
  ModelCut cut =
      cut_of(options.model, options.pipeline, stages.size(), stages.rank(), options.separate_tied);
  if (options.control == NegativeControl::layer_dropped && stages.size() > 1 && stages.rank() == 0)
    --cut.pieces.front().count;
  return cut;
}

TensorAxis tensor_axis(const ModelInstance::Options& options, Mesh& mesh) {
  return {.communicator = &mesh.along(Axis::tensor),
          .sequence = options.sequence,
          .order = options.order};
}

std::uint64_t pass_seed(const ModelInstance::Options& options, const Mesh& mesh) {
  const bool own = options.control == NegativeControl::dropout_per_rank;
  return options.seed + (own ? static_cast<std::uint64_t>(mesh.rank()) : 0);
}

/// What a model cannot do is refused before anything is made.
const ModelConfig& checked(const ModelInstance::Options& options, Mesh& mesh) {
  const int context = mesh.along(Axis::context).size();
  if (options.model.is_speech() && context > 1)
    throw DeckError(fmt::format("parallel.context = {} shares tokens of a sequence, which "
                                "model.type = \"fastconformer\" does not have",
                                context),
                    "set parallel.context to 1; parallel.tensor and parallel.pipeline divide it");
  return options.model;
}

ParameterSet& altered(const ModelInstance::Options& options, ParameterSet& parameters) {
  if (options.training) freeze_parameters(parameters, options.freezing, options.model);
  if (options.alter) options.alter(parameters);
  return parameters;
}

}  // namespace

ModelInstance::ModelInstance(const Options& options, Device& device, Mesh& mesh,
                             std::size_t arena_bytes)
    : options_(options),
      device_(&device),
      mesh_(&mesh),
      stream_(device, &work_),
      parameters_(split_of(options, mesh.along(Axis::tensor))),
      model_(make_model(checked(options, mesh), parameters_,
                        cut_for(options, mesh.along(Axis::pipeline)))),
      storage_(std::make_unique<ParameterStorage>(
          altered(options, parameters_), options.precision, device,
          Sharding(mesh, options.zero, device, options.control), options.training, options.offload,
          &mesh.world())),
      statistics_(parameters_, options.precision, device),
      gatherer_(std::make_unique<ParameterGatherer>(*storage_, device)),
      arena_(device, arena_bytes),
      pass_(stream_, arena_, options.precision, pass_seed(options, mesh),
            tensor_axis(options, mesh), {.communicator = &mesh.along(Axis::context)}),
      scalar_(device, sizeof(double)) {
  pass_.inject(options.control);
  const std::size_t bytes = model_->table_bytes(options.precision);
  tables_ = Buffer(device, bytes);
  model_->prepare(pass_, tables_.data());
}

Gpt& ModelInstance::gpt() {
  auto* const gpt = dynamic_cast<Gpt*>(model_.get());
  CHOIR_CHECK(gpt != nullptr, "this model generates no text");
  return *gpt;
}

void ModelInstance::initialise(std::uint64_t seed) {
  storage_->initialise(seed);
  statistics_.initialise();
  publish();
}

std::unique_ptr<Pass> ModelInstance::make_pass() {
  auto pass = std::make_unique<Pass>(stream_, arena_, options_.precision, pass_.seed(),
                                     pass_.tensor(), pass_.context());
  pass->inject(options_.control);
  return pass;
}

Tensor ModelInstance::forward(Mode mode, const ModelBatch& host) {
  pass_.begin(mode, model_->sequence_of(host, context()), host.first_sample,
              host.first_sample_on_device);
  ModelBatch from = host, batch = host;
  const auto froms = from.fields(), tos = batch.fields();
  std::array<Tensor, std::tuple_size_v<decltype(froms)>> held;
  for (std::size_t f = 0; f < froms.size(); ++f) {
    if (froms[f]->empty()) continue;
    const bool inputs = froms[f] == &from.inputs;
    const bool shared = pass_.shares_positions() && (inputs || froms[f] == &from.targets);
    held[f] = shared ? share_on_device(*froms[f], inputs ? 0 : -1) : on_device(*froms[f]);
    *tos[f] = held[f];
  }
  // What the sequence points at is now where the model can read it.
  pass_.begin(mode, model_->sequence_of(batch, context()), host.first_sample,
              host.first_sample_on_device);
  return forward_through_stages(*model_, pass_, batch, hooks(), stages());
}

double ModelInstance::loss_sum(const ModelBatch& batch) {
  const Tensor losses = forward(Mode::evaluate, batch);
  if (losses.empty()) return 0;
  const TensorView total{scalar_.data(), DType::f64, {1}};
  ops::tree_sum(stream_, losses, total);
  double sum = 0;
  device_->copy_to_host(&sum, total.data, sizeof sum);
  return sum;
}

Tensor ModelInstance::share_on_device(const TensorView& host, std::int32_t padding) {
  TensorView mine = host;
  const std::int64_t whole = pass_.sequence().whole_tokens;
  mine.shape = {pass_.sequence().rows()};
  cut_.resize(static_cast<std::size_t>(mine.count()));
  cut_positions({host.as<std::int32_t>(), static_cast<std::size_t>(host.count())}, whole,
                position_share(whole, context().rank(), context().size()), padding, cut_);
  mine.data = cut_.data();
  Tensor there = arena_.allocate(mine.dtype, mine.shape, "evaluation batch");
  device_->copy_from_host(there.data, mine.data, mine.bytes());
  return there;
}

Tensor ModelInstance::on_device(const TensorView& host) {
  if (device_->host_visible()) return Tensor().view(host);
  Tensor there = arena_.allocate(host.dtype, host.shape, "evaluation batch");
  device_->copy_from_host(there.data, host.data, host.bytes());
  return there;
}

void ModelInstance::add_to(MemoryPlan& plan) const {
  storage_->add_to(plan);
  statistics_.add_to(plan);
  gatherer_->add_to(plan);
  const std::size_t products = ops::gemm_device_bytes(device_->plans_for());
  if (products > 0) plan.add("matrix products", products);
  plan.add("tables", tables_.bytes() + scalar_.bytes());
  plan.add("activations", arena_.peak());
}

}  // namespace choir
