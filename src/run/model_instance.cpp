#include "choir/run/model_instance.hpp"

#include "kernels/gemm/gemm.hpp"
#include "kernels/sums/sums.hpp"
#include "src/device/collective_share.hpp"
#include "src/run/inference_pass.hpp"

namespace choir {
namespace {

TensorSplit split_of(const ModelInstance::Options& options, const Communicator& tensor) {
  return {.rank = tensor.rank(),
          .ranks = tensor.size(),
          .sequence = options.sequence && tensor.size() > 1};
}

ModelCut cut_for(const ModelInstance::Options& options, const Communicator& stages) {
  return cut_of(options.model, options.pipeline, stages.size(), stages.rank(),
                options.reproducible);
}

TensorAxis tensor_axis(const ModelInstance::Options& options, Mesh& mesh) {
  return {.communicator = &mesh.along(Axis::tensor),
          .sequence = options.sequence,
          .order = options.reproducible ? Summation::tree : Summation::fast};
}

/// Refuses options that the model does not support before anything is allocated.
const ModelConfig& checked(const ModelInstance::Options& options, Mesh& mesh) {
  const int context = mesh.along(Axis::context).size();
  const ModelFamily& family = options.model.family();
  if (!family.shares_positions() && context > 1)
    throw DeckError(fmt::format("parallel.context = {} shares tokens of a sequence, which "
                                "model.type = \"{}\" does not have",
                                context, family.name()),
                    "set parallel.context to 1; parallel.tensor and parallel.pipeline divide it");
  return options.model;
}

std::vector<LossTerm> loss_terms_of(const ModelConfig& model) {
  std::vector<LossTerm> terms = model.family().loss_terms(model);
  CHOIR_CHECK(!terms.empty() && terms.size() <= ops::kMostLossTerms, "a loss of {} terms",
              terms.size());
  return terms;
}

ParameterSet& frozen(const ModelInstance::Options& options, ParameterSet& parameters) {
  if (options.training || options.precision.packing != Packing::none)
    freeze_parameters(parameters, options.freezing, options.model);
  return parameters;
}

/// The arena, in memory that is registered with the library of collectives where that is possible.
/// Collective.
Arena arena_of(Device& device, Mesh& mesh, std::size_t bytes) {
  cuda::provide_next(device, mesh.block_for_collectives(bytes));
  return Arena(device, bytes);
}

}  // namespace

ModelInstance::ModelInstance(const Options& options, Device& device, Mesh& mesh,
                             std::size_t arena_bytes)
    : options_(options),
      device_(&device),
      mesh_(&mesh),
      stream_(device, &work_),
      parameters_(split_of(options, mesh.along(Axis::tensor))),
      model_(checked(options, mesh)
                 .family()
                 .make(options.model, parameters_, cut_for(options, mesh.along(Axis::pipeline)))),
      storage_(std::make_unique<ParameterStorage>(
          frozen(options, parameters_), options.precision, device, Sharding(mesh, options.zero),
          options.training, options.offload, &mesh.world())),
      statistics_(parameters_, options.precision, device),
      gatherer_(std::make_unique<ParameterGatherer>(*storage_, device)),
      arena_(arena_of(device, mesh, arena_bytes)),
      pass_(stream_, arena_, options.precision, options.seed, tensor_axis(options, mesh),
            {.communicator = &mesh.along(Axis::context), .way = options.context}),
      loss_terms_(loss_terms_of(options.model)),
      sums_(device, 2 * loss_terms_.size() * sizeof(double)) {
  const std::size_t bytes = model_->table_bytes(options.precision);
  tables_ = Buffer(device, bytes);
  model_->prepare(pass_, tables_.data());
  pass_.set_hooks(*gatherer_);
}

void ModelInstance::initialise(std::uint64_t seed, bool packed) {
  storage_->initialise(seed, packed);
  statistics_.initialise();
  publish();
}

std::unique_ptr<Pass> ModelInstance::make_pass() {
  auto pass = std::make_unique<Pass>(stream_, arena_, options_.precision, pass_.seed(),
                                     pass_.whole_tensor(), pass_.context());
  pass->set_hooks(*gatherer_);
  return pass;
}

Tensor ModelInstance::forward(Mode mode, const ModelBatch& host, const LossSums& losses) {
  BatchMemory memory;
  const ModelBatch batch = part_of(host, mode, memory);
  model_->begin(pass_, mode, batch);
  pass_.collect_losses(losses);
  return forward_through_stages(*model_, pass_, batch, stages());
}

BatchRanks ModelInstance::batch_ranks(Mode mode) const {
  BatchRanks ranks;
  if (mode != Mode::generate) ranks.context = pass_.context();
  if (!model_->divides_rows()) return ranks;
  ranks.tensor_rank = pass_.whole_tensor().rank();
  ranks.tensor_ranks = pass_.whole_tensor().size();
  return ranks;
}

ModelBatch ModelInstance::part_of(const ModelBatch& host, Mode mode, BatchMemory& memory) {
  const BatchRanks ranks = batch_ranks(mode);
  ModelBatch batch = host;
  std::size_t count = 0;
  for (BatchField& field : batch.fields()) {
    if (field.view.empty()) continue;
    Tensor& there = memory[count++];
    there = ranks.share(field) ? share_on_device(host, field, ranks) : on_device(field.view);
    field.view = there;
  }
  return batch;
}

ByTerm ModelInstance::loss_sums(const ModelBatch& batch) {
  const std::size_t terms = loss_terms_.size();
  ByTerm sums(terms, 0);
  const TensorView totals{sums_.data(), DType::f64, {2 * static_cast<std::int64_t>(terms)}};
  ops::zero(stream_, totals);
  auto* const memory = totals.as<double>();
  forward(Mode::evaluate, batch,
          {.sums = memory, .counts = memory + terms, .stride = 1, .terms = terms});
  device_->copy_to_host(sums.begin(), memory, terms * sizeof(double));
  counted_ = ByTerm(terms, 0);
  device_->copy_to_host(counted_.begin(), memory + terms, terms * sizeof(double));
  return sums;
}

double ModelInstance::loss_sum(const ModelBatch& batch) {
  CHOIR_CHECK(loss_terms_.size() == 1, "one sum of a loss of {} terms", loss_terms_.size());
  return loss_sums(batch).first();
}

Tensor ModelInstance::share_on_device(const ModelBatch& batch, const BatchField& field,
                                      const BatchRanks& ranks) {
  TensorView mine = field.view;
  mine.shape = share_shape(batch, field, ranks);
  share_.resize(mine.bytes());
  copy_share(batch, field, ranks, share_.data());
  Tensor there = arena_.allocate(mine.dtype, mine.shape, "evaluation batch");
  device_->copy_from_host(there.data, share_.data(), mine.bytes());
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
  plan.add("tables", tables_.bytes() + sums_.bytes());
  plan.add("activations", arena_.peak());
}

}  // namespace choir
